"""How long an executor waits for the answers to one call."""

from __future__ import annotations

import math
import time

from octavo.errors import ExecutorError


class RankFailed(Exception):
    """A rank answered with an error, `frame`, and others still wait for that rank: they will never answer."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame


class Deadline:
    """Owns: the end of the wait, and the first error that came. `timeout_s` None waits for as long as it takes."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._failure: bytes | None = None

    def shorten(self, failure: bytes, seconds: float) -> None:
        """A rank answered with an error: do not wait much longer for the others."""
        if self._failure is None:
            self._failure = failure
            self._end = min(self._end, time.monotonic() + seconds)

    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def check(self, rank: int) -> None:
        """Raise when the time is over: `RankFailed` with the error that came, or that `rank` is late."""
        if self.seconds_left() > 0:
            return
        if self._failure is not None:
            raise RankFailed(self._failure)
        raise ExecutorError(
            f"Rank {rank} did not answer within {self._timeout_s:g} s; all ranks were stopped.",
            remedy="Give it more time, or start the engine again.",
            rank=rank,
        )
