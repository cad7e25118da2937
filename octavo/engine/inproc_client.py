"""The client of a core in this process. It brings torch along, which `core_client.py` does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.config import EngineConfig, ModelConfig
from octavo.engine.core import EngineCore
from octavo.engine.core_client import EngineCoreClient
from octavo.engine.grammar_compiler import GrammarCompiler
from octavo.kv.planner import KVCachePlan
from octavo.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats, StageReport


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

    def share_grammars(self, compiler: GrammarCompiler) -> None:
        self.core.grammars.compiler = compiler

    def shutdown(self) -> None:
        self.core.shutdown()
