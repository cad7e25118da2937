"""The ranks in this process: one rank, called directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError, ExecutorError, OctavoError
from octavo.executor.executor import Executor
from octavo.messages import ModelRunnerOutput, Rendezvous, SchedulerOutput
from octavo.worker.wrapper import WorkerWrapper


class InprocExecutor(Executor):
    """One rank in the caller's thread; a call returns when the rank is done, so `timeout_s` has nothing to stop.

    Owns: the rank's `WorkerWrapper`.
    Never: starts a process or a thread.
    """

    def __init__(self, config: EngineConfig) -> None:
        parallel = config.parallel
        if parallel.world_size != 1:
            raise ConfigError(
                f"{parallel.world_size} ranks (--tensor-parallel-size {parallel.tensor_parallel_size} x "
                f"--pipeline-parallel-size {parallel.pipeline_parallel_size}) are not offered by the executor "
                f"'inproc', which runs one.",
                remedy="Leave the executor out, or name mp: a process for each.",
                world_size=parallel.world_size,
            )
        self._config = config
        self._workers: list[WorkerWrapper] = []

    def start(self) -> None:
        """As in the contract. A failed start leaves nothing running."""
        if self._workers:
            raise ExecutorError("The executor was started twice.", remedy="Call shutdown first.")
        self._workers = [WorkerWrapper(self._config, global_rank=0, local_rank=0)]
        try:
            self.collective_rpc("init_worker", (Rendezvous(),))
            for method in ("init_device", "load_model"):
                self.collective_rpc(method)
        except BaseException:
            self.shutdown()
            raise

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        self.check_health()
        return [_call(worker, rank, method, args) for rank, worker in enumerate(self._workers)]

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        output: ModelRunnerOutput = self.collective_rpc("execute_model", (step,))[0]
        return output

    def check_health(self) -> None:
        if not self._workers:
            raise ExecutorError("The executor is not running.", remedy="Call start first.")

    def shutdown(self) -> None:
        workers, self._workers = self._workers, []
        for rank, worker in enumerate(workers):
            _call(worker, rank, "shutdown", ())


def _call(worker: WorkerWrapper, rank: int, method: str, args: Sequence[Any]) -> Any:
    try:
        return getattr(worker, method)(*args)
    except OctavoError:
        raise
    except Exception as error:
        raise ExecutorError(
            f"Rank {rank} failed in {method}: {type(error).__name__}: {error}", rank=rank, method=method
        ) from error
