"""Teams run a kernel on as many threads as they are asked for."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from octavo.attention.team import OpenMPTeam, Team, ThreadTeam, make_team

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _run(team: Team, num_threads: int) -> tuple[list[int], set[int]]:
    """(arguments, threads) of the calls of one run. Each call waits for the others, so none can do two."""
    arguments: list[int] = []
    threads: set[int] = set()
    barrier = threading.Barrier(num_threads, timeout=60)

    def kernel(argument: int) -> None:
        barrier.wait()
        arguments.append(argument)
        threads.add(threading.get_ident())

    callback = _Callback(kernel)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    team.run(address, 4096, num_threads)
    return arguments, threads


@pytest.mark.parametrize("make", [make_team, ThreadTeam])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_member_calls_the_kernel_once(make: Callable[[], Team], num_threads: int) -> None:
    team = make()
    for _ in range(3):
        arguments, threads = _run(team, num_threads)
        assert arguments == [4096] * num_threads
        assert len(threads) == num_threads
        assert threading.get_ident() in threads


def test_torchs_own_threads_are_used_where_torch_has_them() -> None:
    assert isinstance(make_team(), OpenMPTeam)


def test_without_the_runtimes_entry_point_threads_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """A process in which no library has the symbol."""

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert isinstance(make_team(), ThreadTeam)
