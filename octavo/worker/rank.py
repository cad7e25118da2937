"""What a rank answers to, wherever it lives: the methods that an executor calls, on every rank alike.

Arguments and results are plain values and msgspec structs, so a call can cross a process; the annotations here are what
`octavo/executor/rank_calls.py` encodes and decodes by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport


class Rank(ABC):
    """The surface of one rank, in the order of its life."""

    @abstractmethod
    def init_worker(self, rendezvous: Rendezvous) -> None:
        """Make the worker; it takes nothing yet. `rendezvous` is where it will find the other ranks."""

    @abstractmethod
    def init_device(self) -> None:
        """Choose the device, by local rank, and meet the other ranks."""

    @abstractmethod
    def load_model(self) -> None:
        """Load this rank's part of the model."""

    @abstractmethod
    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        """What each cached layer of this rank keeps, by layer name, in the order of layers."""

    @abstractmethod
    def get_shared_layers(self) -> dict[str, str]:
        """Layer that keeps no cache of its own -> the layer whose cache it reads."""

    @abstractmethod
    def determine_available_memory(self) -> int:
        """Bytes that this rank's cache may take."""

    @abstractmethod
    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        """Take this rank's config, `configs[global_rank]`, out of the list of all ranks' and build its cache."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile every kernel and run the first steps."""

    @abstractmethod
    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""

    @abstractmethod
    def stage_reports(self) -> list[StageReport]:
        """Everything this rank has done since its start, in order."""

    @abstractmethod
    def report_memory(self) -> MemoryReport:
        """What the cache really takes. Changes nothing."""

    @abstractmethod
    def write_cache(self) -> int:
        """Write zeros over the whole cache; the bytes of this process that lie in memory then. Not while a request
        runs."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free everything. May be called twice, and before `init_worker`."""
