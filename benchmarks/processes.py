"""Fresh processes: what one printed, how long it took, and the most memory that it and its children held."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 0.1
GRACE_SECONDS = 20


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str
    seconds: float
    peak_rss_bytes: int
    """Most that the process and its descendants had resident together when they were looked at, every 0.1 s, and at
    least the most that any one of them had. Pages that several share count for each."""


def run_process(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout_s: float | None = None
) -> Ended:
    """Run `command` to its end. Raises `subprocess.TimeoutExpired` when it takes too long.

    Whatever happens, nothing of it is left running: it has a process group of its own, which ends with it.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=dict(environment), cwd=cwd, stdout=out, stderr=err, start_new_session=True
        )
        watch = _MemoryWatch(process.pid)
        try:
            code = process.wait(timeout_s)
            seconds = time.perf_counter() - started
        finally:
            watch.stop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (out, err):
            file.seek(0)
        return Ended(code, out.read(), err.read(), seconds, watch.peak)


def end_children_when_terminated() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that nothing it started outlives it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def run_shown(command: Sequence[str], cwd: Path, timeout_s: float) -> int | None:
    """Run `command` on this terminal; its exit code, or None when it had to be interrupted for taking too long."""
    with subprocess.Popen(command, cwd=cwd) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            # As Ctrl-C would, so that it can end what it has started itself.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            return None


class _MemoryWatch:
    """Looks at a process and its descendants now and then. Owns: the most they have had, in bytes."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            found = [_memory(pid) for pid in family(self._pid)]
            together = sum(now for now, _ in found)
            self.peak = max(self.peak, together, *(most for _, most in found))


def family(pid: int) -> list[int]:
    """The process and all its descendants that run now."""
    found = [pid]
    for parent in found:
        try:
            listed = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8").split()
        except OSError:
            continue
        found += map(int, listed)
    return found


def peak_rss(pid: int) -> int:
    """Most bytes that a process has had resident; 0 when it is gone."""
    return _memory(pid)[1]


def _memory(pid: int) -> tuple[int, int]:
    """(bytes resident now, the most there were); zeros when the process is gone."""
    found = {"VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]
