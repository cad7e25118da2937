"""How a front end talks to the engine core, wherever the core runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.config import ModelConfig
from octavo.engine.grammar_compiler import GrammarCompiler
from octavo.kv.planner import KVCachePlan
from octavo.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats


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

    def share_grammars(self, compiler: GrammarCompiler) -> None:  # noqa: B027
        """Let a core in this process use what the front end compiles; others have compilers of their own."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core and its ranks. May be called twice."""
