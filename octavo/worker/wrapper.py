"""The rank that has a worker.

Global becomes local here: `initialize_from_config` gets the configs of all ranks and takes `configs[global_rank]`.
"""

from __future__ import annotations

from octavo.config import EngineConfig
from octavo.errors import ExecutorError, InvariantError
from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from octavo.worker.rank import Rank
from octavo.worker.worker import Worker


class WorkerWrapper(Rank):
    """The surface of one rank.

    Owns: the rank's `Worker`, from `init_worker` to `shutdown`.
    Never: touches memory or models itself.

    Parameters:
        global_rank: place among all ranks, from 0; it picks the rank's config.
        local_rank: place among the ranks of this machine; it picks the rank's device.
    """

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        world_size = config.parallel.world_size
        if not 0 <= global_rank < world_size or not 0 <= local_rank <= global_rank:
            raise InvariantError(f"global rank {global_rank} and local rank {local_rank} of {world_size} ranks")
        self.global_rank = global_rank
        self.local_rank = local_rank
        self._config = config
        self._worker: Worker | None = None

    def init_worker(self, rendezvous: Rendezvous) -> None:
        """Make the worker; it takes nothing yet."""
        self._worker = Worker(
            self._config, global_rank=self.global_rank, local_rank=self.local_rank, rendezvous=rendezvous
        )

    def init_device(self) -> None:
        self._made().init_device()

    def load_model(self) -> None:
        self._made().load_model()

    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        return self._made().get_kv_cache_specs()

    def get_shared_layers(self) -> dict[str, str]:
        return self._made().get_shared_layers()

    def determine_available_memory(self) -> int:
        return self._made().determine_available_memory()

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        """Take this rank's config out of the list of all ranks' and build its cache.

        Raises `ExecutorError` when the list has not one config per rank.
        """
        world_size = self._config.parallel.world_size
        if len(configs) != world_size:
            raise ExecutorError(
                f"Rank {self.global_rank} was sent {len(configs)} cache configs, and there are {world_size} ranks.",
                remedy="Plan for as many ranks as run.",
                num_configs=len(configs),
                world_size=world_size,
            )
        self._made().initialize_from_config(configs[self.global_rank])

    def warm_up(self) -> None:
        self._made().warm_up()

    def report_memory(self) -> MemoryReport:
        return self._made().report_memory()

    def write_cache(self) -> int:
        return self._made().write_cache()

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        return self._made().execute_model(step)

    def stage_reports(self) -> list[StageReport]:
        """Everything this rank has done since its start, in order."""
        return list(self._made().reports)

    def shutdown(self) -> None:
        """Free everything. May be called twice, and before `init_worker`."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None

    def _made(self) -> Worker:
        if self._worker is None:
            raise ExecutorError(
                f"Rank {self.global_rank} has no worker.", remedy="Call init_worker first; after shutdown, start anew."
            )
        return self._worker
