"""An executor whose pipeline stages are workers of this process, one run after the other.

What a stage sends lies in a queue until the next one fetches it, so no stage waits for another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from octavo.config import EngineConfig
from octavo.executor.executor import Executor
from octavo.messages import ModelRunnerOutput, SchedulerOutput
from octavo.worker import worker as worker_module
from octavo.worker.rank_group import Place, RankGroup
from octavo.worker.worker import Worker


class QueuedLine:
    """A stage's place in a line. Owns: nothing; `queues[i]` holds what stage i has sent and i + 1 not fetched."""

    def __init__(self, queues: list[deque[torch.Tensor]], index: int) -> None:
        self._queues, self.index, self.size = queues, index, len(queues)

    def send(self, tensor: torch.Tensor, target: int) -> None:
        assert target == self.index + 1 and tensor.is_contiguous()
        self._queues[self.index].append(tensor.clone())

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        assert source == self.index - 1
        sent = self._queues[source].popleft()
        assert sent.shape == tensor.shape and sent.dtype == tensor.dtype
        return tensor.copy_(sent)

    def close(self) -> None:
        self._queues.clear()


class StagedExecutor(Executor):
    """Owns: the workers."""

    last: StagedExecutor
    """The one that was made last."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.workers: list[Worker] = []
        StagedExecutor.last = self

    def start(self) -> None:
        queues: list[deque[torch.Tensor]] = [deque() for _ in range(self._config.parallel.world_size)]
        for rank in range(len(queues)):
            worker = Worker(self._config, global_rank=rank, local_rank=0)
            line: Any = QueuedLine(queues, rank)
            group = RankGroup(Place(rank, 0), None, line if len(queues) > 1 else None)
            with mock.patch.object(worker_module, "join_ranks", lambda *_args, group=group, **_named: group):
                worker.init_device()
            worker.load_model()
            self.workers.append(worker)

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        if method == "initialize_from_config":
            for rank, worker in enumerate(self.workers):
                worker.initialize_from_config(args[0][rank])
            return [None] * len(self.workers)
        if method == "stage_reports":
            return [list(worker.reports) for worker in self.workers]
        return [getattr(worker, method)(*args) for worker in self.workers]

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        output: ModelRunnerOutput = self.collective_rpc("execute_model", (step,))[-1]
        return output

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.workers = []
