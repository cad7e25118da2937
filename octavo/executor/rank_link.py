"""One rank in another process, as its executor holds it: the process, and the two sockets to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from octavo.config import EngineConfig, child_environment
from octavo.errors import ExecutorError
from octavo.executor.frames import FrameSocket, framed
from octavo.executor.rank_calls import RankStart, encode_start

_PULSE = b"\x00"

_STANDSTILL_S = 4.0
"""Whoever waits for a rank looks at its pulse every second: after so long without a look, it was stopped itself."""


class RankLink:
    """A started rank.

    Owns: its process and both sockets. Never: waits for an answer.
    """

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int, rank_class: str) -> None:
        """Start the process, and tell it who it is. `rank_class` is the `module:Class` that answers there."""
        self.global_rank = global_rank
        ours, theirs = socket.socketpair()
        self._pulse, their_pulse = socket.socketpair()
        with theirs, their_pulse:
            handles = (theirs.fileno(), their_pulse.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo.executor.rank_process", *map(str, handles), rank_class],
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _is_real(sys.stderr) else None,
                env=child_environment(),
            )
        self._pulse.settimeout(0)
        self.calls = FrameSocket(ours)
        self._asked_at: float | None = None
        self._looked_at = 0.0
        start = RankStart(config=config, global_rank=global_rank, local_rank=local_rank)
        self.send(framed(encode_start(start)))

    def send(self, frame: bytes) -> None:
        """Send what `framed` made. Raises `ExecutorError` when the rank is gone."""
        try:
            self.calls.send(frame)
        except OSError:
            raise self.death() from None

    def receive(self) -> bytes:
        """The content of the next frame, which must be under way. Raises `ExecutorError` when the rank is gone."""
        try:
            return self.calls.receive()
        except (EOFError, OSError):
            raise self.death() from None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def seconds_without_pulse(self) -> float:
        """How long the process has not answered; asks it again."""
        now = time.monotonic()
        try:
            while self._pulse.recv(64):
                self._asked_at = None
        except BlockingIOError:
            pass
        except OSError:
            return 0.0
        if self._asked_at is not None and now - self._looked_at > _STANDSTILL_S:
            self._asked_at = now  # This process stood still, and the rank perhaps as long: Ctrl-Z stops both.
        self._looked_at = now
        if self._asked_at is None:
            try:
                self._pulse.send(_PULSE)
            except OSError:
                return 0.0
            self._asked_at = now
        return now - self._asked_at

    def death(self) -> ExecutorError:
        """What to say of a rank that is gone."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        else:
            how = _how_it_ended(code)
        return ExecutorError(
            f"Rank {self.global_rank} (process {self._process.pid}) {how}; all ranks were stopped.",
            remedy="Look at its last lines on stderr; start the engine again.",
            rank=self.global_rank,
            pid=self._process.pid,
        )

    def end(self, *, grace_s: float) -> None:
        """Close the sockets, upon which the process ends, and see to it that it does. May be called twice."""
        self.calls.close()
        self._pulse.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_real(stream: object) -> bool:
    """Whether a stream is a file of the system, as it need not be inside a test or a notebook."""
    try:
        return os.fstat(stream.fileno()) is not None  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
