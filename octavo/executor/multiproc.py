"""The ranks as processes of this machine, one each."""

from __future__ import annotations

import select
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ExecutorError
from octavo.executor.deadline import Deadline, RankFailed
from octavo.executor.frames import framed
from octavo.executor.rank_calls import encode_call, is_error
from octavo.executor.rank_link import RankLink
from octavo.executor.remote import GRACE_S, PULSE_EVERY_S, RemoteExecutor
from octavo.messages import Rendezvous


class MultiprocExecutor(RemoteExecutor):
    """A process per rank, told what to do through a pair of sockets that nobody else can open.

    Owns: the processes, and while they start a folder where they find each other.
    """

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._links: list[RankLink] = []
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}

    @property
    def num_ranks(self) -> int:
        return len(self._links)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        links = self._links
        world_size = self._config.parallel.world_size
        self._end = weakref.finalize(self, _end_all, links, 0.0)
        for rank in range(world_size):
            link = RankLink(self._config, global_rank=rank, local_rank=rank, rank_class=self._rank_class)
            links.append(link)
            self._poll.register(link.calls, select.POLLIN)
            self._rank_of[link.calls.fileno()] = rank
        with TemporaryDirectory(prefix="octavo-") as folder:  # which nobody else can enter
            meeting = Rendezvous(path=str(Path(folder, "ranks")), num_local_ranks=world_size)
            self.collective_rpc("init_worker", (meeting,))
            yield

    def _check_ranks(self) -> None:
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
        self._stop(GRACE_S)

    def _ask(self, call: bytes, timeout_s: float | None) -> list[bytes]:
        frame = framed(call)
        try:
            for link in self._links:
                link.send(frame)
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
            ready = self._poll.poll(1000 * min(PULSE_EVERY_S, deadline.seconds_left()))
            for handle, _ in ready:
                # A rank that has answered and is heard of again is gone: to receive from it says so.
                rank = waiting.pop(handle, self._rank_of.get(handle, 0))
                frames[rank] = frame = self._links[rank].receive()
                if is_error(frame):
                    deadline.shorten(frame, GRACE_S)
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
