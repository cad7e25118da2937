"""A rank's process as its executor holds it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from octavo.errors import ExecutorError
from octavo.executor import rank_link
from octavo.executor.frames import framed
from octavo.executor.rank_calls import decode_answer, encode_call
from octavo.executor.rank_link import RankLink
from tests.executor.test_multiproc import config


def made(kind: str = "Null") -> RankLink:
    return RankLink(config(1), global_rank=0, local_rank=0, rank_class=f"tests.executor.process_ranks:{kind}")


def test_a_call_and_its_answer() -> None:
    link = made()
    link.send(framed(encode_call("determine_available_memory", ())))
    assert decode_answer("determine_available_memory", link.receive()) == 1 << 20
    assert link.is_alive()
    link.end(grace_s=10)
    link.end(grace_s=0)
    assert not link.is_alive()


def test_a_living_process_has_a_pulse_and_a_stopped_one_has_none() -> None:
    link = made()
    try:
        link.send(framed(encode_call("init_device", ())))
        link.receive()
        assert link.seconds_without_pulse() == 0  # it asks
        assert _within(5, lambda: link.seconds_without_pulse() == 0)
        os.kill(link.pid, signal.SIGSTOP)
        assert _within(5, lambda: link.seconds_without_pulse() >= 0.3)
    finally:
        link.end(grace_s=0)


def test_who_stood_still_itself_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    link = made()
    try:
        os.kill(link.pid, signal.SIGSTOP)
        assert link.seconds_without_pulse() == 0
        start = time.monotonic()
        monkeypatch.setattr(rank_link.time, "monotonic", lambda: start + 60)
        assert link.seconds_without_pulse() == 0
        monkeypatch.setattr(rank_link.time, "monotonic", lambda: start + 62)
        assert link.seconds_without_pulse() == pytest.approx(2)
    finally:
        monkeypatch.undo()
        link.end(grace_s=0)


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something is so, soon: on a busy machine, neither an answer nor a signal comes at once."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("end", "says"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGRTMIN + 1, "was killed by ")]
)
def test_how_it_died(end: int, says: str) -> None:
    link = made()
    link.send(framed(encode_call("init_device", ())))
    link.receive()
    os.kill(link.pid, end)
    with pytest.raises(ExecutorError, match=rf"Rank 0 \(process {link.pid}\) {says}") as caught:
        link.receive()
    assert caught.value.numbers == {"rank": 0, "pid": link.pid}
    with pytest.raises(ExecutorError, match=says):
        link.send(b"")
        link.send(b"more")
        raise link.death()
    link.end(grace_s=0)
