"""Programs: every member runs every kernel, one kernel after the other."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from octavo.attention.numba_memory import Record
from octavo.attention.program import KernelCall, Program
from octavo.attention.team import Team, ThreadTeam, make_team

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
JOB = np.dtype([(name, np.int64) for name in ("num_units_begun", "num_begun", "value", "seen")])


class Calls:
    """Kernels written in Python, for any number of members. Owns: what happened."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        """What a member did (begin or end), and in which call."""
        self.values: list[int] = []
        """The job's value as each call found it."""
        self._kept: list[object] = []

    def make(self, number: int) -> KernelCall:
        """A call in which one member has work to do; the others return at once."""
        record = Record(JOB, {"num_units_begun": 5, "num_begun": 5, "value": number})

        def kernel(address: int) -> None:
            fields = np.frombuffer((ctypes.c_int64 * 4).from_address(address), np.int64)
            self.events.append(("begin", number))
            with self._lock:
                has_work = fields[0] == 0
                fields[0] += 1
                assert fields[1] == (0 if number % 2 else 5), "counters are 0 when a kernel begins, nothing else is"
            if has_work:
                self.values.append(int(fields[2]))
                time.sleep(0.002)
            self.events.append(("end", number))

        callback = _Callback(kernel)
        self._kept.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        return KernelCall(address, record, num_counters=1 + number % 2)

    _lock = threading.Lock()


class OneAfterTheOther(Team):
    """Members that come when the one before has gone."""

    def run(self, kernel: int, argument: int, num_threads: int) -> None:
        for _ in range(num_threads):
            _Callback(kernel)(argument)


@pytest.mark.parametrize("make", [make_team, ThreadTeam, OneAfterTheOther])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_calls_run_one_after_the_other(make: Callable[[], Team], num_threads: int) -> None:
    calls = Calls()
    program = Program([calls.make(number) for number in range(6)], [], make())
    for _ in range(3):
        calls.events.clear()
        calls.values.clear()
        program.run(num_threads)
        assert calls.values == list(range(6)), "each is done, by one member"
        assert [number for _, number in calls.events] == sorted(number for _, number in calls.events)
        assert calls.events.count(("begin", 5)) == calls.events.count(("end", 5)) <= num_threads


def test_who_comes_late_finds_nothing_to_do() -> None:
    calls = Calls()
    Program([calls.make(0), calls.make(1)], [], OneAfterTheOther()).run(3)
    assert calls.events == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]


def test_numbers_are_copied_at_the_start_of_every_run() -> None:
    calls = Calls()
    first, second = calls.make(0), calls.make(1)
    step = np.array([7, 9], np.int64)
    source = step.ctypes.data
    program = Program(
        [first, second], [(first.field("value"), source), (second.field("value"), source + 8)], make_team()
    )
    program.run(2)
    assert calls.values == [7, 9]
    step[:] = 1, 2
    program.run(1)
    assert calls.values[2:] == [1, 2]


def test_a_program_may_be_empty() -> None:
    Program([], [], make_team()).run(2)


def test_counters_are_zero_after_a_run() -> None:
    calls = Calls()
    call = calls.make(1)
    program = Program([call], [], make_team())
    program.run(2)
    assert call.record.array["num_units_begun"] == call.record.array["num_begun"] == 0
