"""Ranks that live elsewhere and are told what to do by messages: what executors of such ranks have in common."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ExecutorError
from octavo.executor.executor import Executor
from octavo.executor.rank_calls import decode_answers, decode_last, encode_call
from octavo.messages import ModelRunnerOutput, SchedulerOutput

WORKER_RANK = "octavo.worker.wrapper:WorkerWrapper"
"""What runs where a rank lives."""

PULSE_EVERY_S = 1.0
MOST_SILENT_S = 10.0
"""A rank that answers no pulse for so long is taken for hung or gone: stopped, swapped out, stuck in one call of C code
that lets no other thread run, or on a machine that is lost."""
GRACE_S = 5.0
"""Time for ranks to end by themselves, and for the others to answer after one failed, for which they may wait."""


class RemoteExecutor(Executor):
    """Ranks elsewhere. The first one that fails, dies or falls silent ends all of them: what one rank has not done, the
    others cannot make up for. So after an `ExecutorError` of that kind nothing is left running.

    Owns: what ends them when nobody refers to this any more. Never: computes, or imports torch.

    Parameters:
        rank_class: `module:Class` of a `Rank`, made where it lives with (config, global_rank=, local_rank=).
        silence_s: seconds without a sign of life after which a rank counts as hung or gone.
    """

    def __init__(
        self, config: EngineConfig, *, rank_class: str = WORKER_RANK, silence_s: float = MOST_SILENT_S
    ) -> None:
        self._config = config
        self._rank_class = rank_class
        self._silence_s = silence_s
        self._end: weakref.finalize[Any, Any] | None = None
        self._ended_by: ExecutorError | None = None
        """Why a step failed last: where no rank is left, that is why."""

    @property
    @abstractmethod
    def num_ranks(self) -> int:
        """How many were started; 0 before, and once they have ended."""

    @abstractmethod
    def _meeting(self) -> AbstractContextManager[None]:
        """Start the ranks. Inside, they know where to meet, and may."""

    @abstractmethod
    def _ask(self, call: bytes, timeout_s: float | None) -> list[bytes]:
        """Send `call` to all ranks; their answers, in the order of ranks, or the error alone for which others wait."""

    @abstractmethod
    def _check_ranks(self) -> None:
        """Raise, once all are ended, when one is gone."""

    def start(self) -> None:
        """As in the contract. A failed start leaves nothing running."""
        if self.num_ranks:
            raise ExecutorError("The executor was started twice.", remedy="Call shutdown first.")
        self._ended_by = None
        try:
            with self._meeting():
                self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self.shutdown()
            raise

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        """As in the contract. Raises `ExecutorError` after `timeout_s` without all answers; the ranks are ended then.

        An error of ranks is raised once all have answered, the lowest rank's where there are several. Ranks that have
        not answered seconds later wait for one that failed, in a collective operation: all are ended, and its error
        is raised.
        """
        self._check_running()
        return decode_answers(method, self._ask(encode_call(method, args), timeout_s))

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self._check_running()
        try:
            answers = self._ask(encode_call("execute_model", (step,)), None)
            output: ModelRunnerOutput = decode_last("execute_model", answers)
        except ExecutorError as error:
            self._ended_by = error
            raise
        return output

    def check_health(self) -> None:
        self._check_running()
        self._check_ranks()

    def _check_running(self) -> None:
        if not self.num_ranks:
            if self._ended_by is not None:
                raise ExecutorError(f"No rank is running any more. {self._ended_by.fact}", remedy=self._ended_by.remedy)
            raise ExecutorError("The executor is not running.", remedy="Call start first.")
