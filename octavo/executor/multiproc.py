"""The ranks as processes of this machine, one each."""

from __future__ import annotations

import select
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ExecutorError
from octavo.executor.deadline import Deadline, RankFailed
from octavo.executor.executor import Executor
from octavo.executor.frames import framed
from octavo.executor.rank_calls import decode_answers, decode_last, encode_call, is_error
from octavo.executor.rank_link import RankLink
from octavo.messages import ModelRunnerOutput, Rendezvous, SchedulerOutput

WORKER_RANK = "octavo.worker.wrapper:WorkerWrapper"
"""What runs in a rank's process."""

_PULSE_EVERY_S = 1.0
_MOST_SILENT_S = 10.0
"""A process that answers no pulse for so long is taken for hung: stopped, swapped out, or stuck in one call of C code
that lets no other thread run."""
_GRACE_S = 5.0
"""Time for ranks to end by themselves, and for the others to answer after one failed, for which they may wait."""


class MultiprocExecutor(Executor):
    """A process per rank, told what to do through a pair of sockets that nobody else can open.

    The first rank that fails, dies or falls silent ends all of them: what one rank has not done, the others cannot
    make up for. So after an `ExecutorError` of that kind nothing is left running.

    Owns: the processes, and while they start a folder where they find each other. Never: computes, or imports torch.

    Parameters:
        rank_class: `module:Class` of a `Rank`, made in the process with (config, global_rank=, local_rank=).
        silence_s: seconds without a sign of life after which a rank counts as hung.
    """

    def __init__(
        self, config: EngineConfig, *, rank_class: str = WORKER_RANK, silence_s: float = _MOST_SILENT_S
    ) -> None:
        self._config = config
        self._rank_class = rank_class
        self._silence_s = silence_s
        self._links: list[RankLink] = []
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}
        self._end: weakref.finalize[Any, Any] | None = None

    def start(self) -> None:
        """As in the contract. A failed start leaves nothing running."""
        if self._links:
            raise ExecutorError("The executor was started twice.", remedy="Call shutdown first.")
        links = self._links
        world_size = self._config.parallel.world_size
        self._end = weakref.finalize(self, _end_all, links, 0.0)
        try:
            for rank in range(world_size):
                link = RankLink(self._config, global_rank=rank, local_rank=rank, rank_class=self._rank_class)
                links.append(link)
                self._poll.register(link.calls, select.POLLIN)
                self._rank_of[link.calls.fileno()] = rank
            with TemporaryDirectory(prefix="octavo-") as folder:  # which nobody else can enter
                meeting = Rendezvous(path=str(Path(folder, "ranks")), num_local_ranks=world_size)
                self.collective_rpc("init_worker", (meeting,))
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
        return decode_answers(method, self._ask(framed(encode_call(method, args)), timeout_s))

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        frames = self._ask(framed(encode_call("execute_model", (step,))), None)
        output: ModelRunnerOutput = decode_last("execute_model", frames)
        return output

    def check_health(self) -> None:
        if not self._links:
            raise ExecutorError("The executor is not running.", remedy="Call start first.")
        for link in self._links:
            if not link.is_alive():
                self._stop(0.0)
                raise link.death()

    def shutdown(self) -> None:
        """As in the contract: ranks that answer end by themselves, the others are killed after a few seconds."""
        for link in self._links:
            try:
                link.send(framed(encode_call("shutdown", ())))
            except ExecutorError:
                continue
        self._stop(_GRACE_S)

    def _ask(self, call: bytes, timeout_s: float | None) -> list[bytes]:
        """Send `call` to all ranks; their answers, in the order of ranks, or the error alone for which others wait."""
        if not self._links:
            self.check_health()
        try:
            for link in self._links:
                link.send(call)
            return self._collect(timeout_s)
        except RankFailed as failed:
            self._stop(0.0)
            return [failed.frame]
        except BaseException:
            # An answer that is still to come, after Ctrl-C too, would be taken for that of the next call.
            self._stop(0.0)
            raise

    def _collect(self, timeout_s: float | None) -> list[bytes]:
        """The answers; raises when a rank is gone or silent, when time is over, and when a rank failed for which the
        others wait."""
        waiting = {link.calls.fileno(): rank for rank, link in enumerate(self._links)}
        frames = [b""] * len(waiting)
        deadline = Deadline(timeout_s)
        while waiting:
            ready = self._poll.poll(1000 * min(_PULSE_EVERY_S, deadline.seconds_left()))
            for handle, _ in ready:
                # A rank that has answered and is heard of again is gone: to receive from it says so.
                rank = waiting.pop(handle, self._rank_of.get(handle, 0))
                frames[rank] = frame = self._links[rank].receive()
                if is_error(frame):
                    deadline.shorten(frame, _GRACE_S)
            if waiting and not ready:
                self._check_silent(waiting.values())
                deadline.check(min(waiting.values()))
        return frames

    def _check_silent(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            link = self._links[rank]
            silent_s = link.seconds_without_pulse()
            if silent_s > self._silence_s:
                raise ExecutorError(
                    f"Rank {rank} (process {link.pid}) has given no sign of life for {silent_s:.0f} s; all ranks were "
                    "stopped.",
                    remedy="See whether it was stopped, or the machine has no memory left; start the engine again.",
                    rank=rank,
                    pid=link.pid,
                )

    def _stop(self, grace_s: float) -> None:
        _end_all(self._links, grace_s)
        self._poll, self._rank_of = select.poll(), {}
        if self._end is not None:
            self._end.detach()


def _end_all(links: list[RankLink], grace_s: float) -> None:
    """End these ranks and empty the list."""
    gone = links.copy()
    links.clear()
    for link in gone:
        link.end(grace_s=grace_s)
