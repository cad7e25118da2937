"""The executor contract: where ranks live, and how the engine core talks to all of them.

Start-up, in this order:

    executor.start()                          workers made: init_worker(where they meet) -> init_device -> load_model
    executor.get_kv_cache_specs()             one {layer name: spec} per rank
    executor.determine_available_memory()     bytes per rank
    executor.initialize_from_config(configs)  the whole list goes to every rank; each picks configs[global_rank]
    executor.warm_up()
    executor.execute_model(step)              for each step
    executor.shutdown()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Owns: the ranks. Never: decides what runs or who holds which block."""

    @abstractmethod
    def start(self) -> None:
        """Create every rank's worker, choose its device by local rank, load its part of the model.

        Raises the worker's own error when it is an `OctavoError`, else `ExecutorError` with rank, class and message.
        """

    @abstractmethod
    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        """Call `WorkerWrapper.<method>(*args)` on every rank; results in order of global rank."""

    @abstractmethod
    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step on every rank; the answer of the rank that samples."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise `ExecutorError` when a rank is gone."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop every rank and free its memory. May be called twice."""

    def get_kv_cache_specs(self) -> list[dict[str, LayerSpec]]:
        return self.collective_rpc("get_kv_cache_specs")

    def get_shared_layers(self) -> list[dict[str, str]]:
        """Per rank: layer that keeps no cache of its own -> the layer whose cache it reads."""
        return self.collective_rpc("get_shared_layers")

    def determine_available_memory(self) -> list[int]:
        return self.collective_rpc("determine_available_memory")

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        self.collective_rpc("initialize_from_config", (configs,))

    def warm_up(self) -> None:
        self.collective_rpc("warm_up")
