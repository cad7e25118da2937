"""How a front end talks to the engine core, wherever the core runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from octavo.config import EngineConfig, ModelConfig
from octavo.engine.core import EngineCore
from octavo.kv.planner import KVCachePlan
from octavo.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats, StageReport


class EngineCoreClient(ABC):
    """The verbs of `EngineCore`.

    Owns: the connection to one core. Never: sees a request's text.
    """

    @property
    @abstractmethod
    def plan(self) -> KVCachePlan:
        """What the cache holds, and where."""

    @property
    @abstractmethod
    def model_config(self) -> ModelConfig: ...

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """Longest prompt + output in tokens."""

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Put a request into the line. Raises `RequestError` when it is refused; then nothing of it is kept."""

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget these requests; unknown and finished ids are skipped. No output follows for them."""

    @abstractmethod
    def step(self) -> EngineCoreOutputs:
        """Run one step; its news."""

    @abstractmethod
    def has_unfinished_requests(self) -> bool: ...

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while a request holds blocks."""

    @abstractmethod
    def stats(self) -> SchedulerStats: ...

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core and its ranks. May be called twice."""


class InprocClient(EngineCoreClient):
    """A core in this process, called directly.

    Raises what `EngineCore` raises, at start-up and later.
    """

    def __init__(self, config: EngineConfig, *, on_stage: Callable[[StageReport], None] | None = None) -> None:
        self.core = EngineCore(config, on_stage=on_stage)

    @property
    def plan(self) -> KVCachePlan:
        return self.core.plan

    @property
    def model_config(self) -> ModelConfig:
        return self.core.model_config

    @property
    def max_model_len(self) -> int:
        return self.core.max_model_len

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_requests(request_ids)

    def step(self) -> EngineCoreOutputs:
        return self.core.step()

    def has_unfinished_requests(self) -> bool:
        return self.core.has_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        return self.core.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        return self.core.stats()

    def shutdown(self) -> None:
        self.core.shutdown()
