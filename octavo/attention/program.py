"""Kernels that a team runs one after the other in one go.

A step of a model is some hundred kernels of a few microseconds each. Started from Python, each costs as much again; a
program is started once.

    copies:  numbers of the step go to the fields of jobs that hold them
    calls:   kernel 0 | all of it is done | kernel 1 | all of it is done | ...

A kernel returns when no work of it is left to take, so it is done once nobody is in it any more who ever was. That is
what members wait for, not for each other: one that the system has put to sleep holds nobody up unless it sleeps in the
middle of a piece of work, and on waking it skips what was done without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from octavo.attention.numba_emit import LINE
from octavo.attention.numba_kernels import kernel_folder, source_digest
from octavo.attention.numba_memory import (
    JobType,
    Record,
    call_job,
    call_plain,
    get_int64,
    get_shared,
    put_int64,
    swap_if,
)
from octavo.attention.numba_vectors import address_of, compiled, fetch_add
from octavo.attention.team import Team
from octavo.compiling import c_function, kept_apart

PROGRAM = np.dtype(
    [(name, np.int64) for name in ("num_units_begun", "calls", "num_calls", "copies", "num_copies", "give_way")]
)
"""`calls`: (kernel, job, counters, members) each, in a cache line of its own; `copies`: (to, from) each, addresses of
int64. `give_way` is a C function that lets other threads run, or 0. All int64."""

_CALL_BYTES = LINE
_MEMBERS = 24
"""Where in a call the number of members in it stands."""
_DONE = -(1 << 40)
"""Added to that number once the call is done."""
_SPINS = 2000
"""Looks at a call before a waiting member gives way."""


class KernelCall(NamedTuple):
    """A kernel for a team, and its job."""

    kernel: int
    """Address of a C function of one argument, the address of the job."""
    record: Record
    num_counters: int = 1
    """int64 fields at the start of the job that count up while the kernel runs, from 0."""

    def field(self, name: str) -> int:
        """Address of a field of the job."""
        return self.record.address + int(self.record.array.dtype.fields[name][1])


@compiled
def wait_until_done(program: Any, members: int) -> None:
    """Returns when the call whose number of members is at `members` is done."""
    num_looks = 0
    while get_shared(members) >= 0:
        num_looks += 1
        if num_looks > _SPINS and program.give_way != 0:
            call_plain(program.give_way)


@compiled
def copy_numbers(program: Any) -> None:
    """The first call of every program: one member carries out the copies."""
    if fetch_add(address_of(program), 1) == 0:
        for number in range(program.num_copies):
            place = program.copies + 16 * number
            put_int64(get_int64(place), get_int64(get_int64(place + 8)))


@compiled
def run_calls(program: Any) -> None:
    """One member's part of a program. Leaves the counters of all jobs at 0."""
    for number in range(program.num_calls):
        call = program.calls + _CALL_BYTES * number
        members = call + _MEMBERS
        if fetch_add(members, 1) < 0:
            continue  # done already
        job = get_int64(call + 8)
        if number == 0:
            copy_numbers(program)
        else:
            call_job(get_int64(call), job)
        if fetch_add(members, -1) == 1 and swap_if(members, 0, _DONE):
            for counter in range(get_int64(call + 16)):
                put_int64(job + 8 * counter, 0)
        wait_until_done(program, members)


@cache
def _run_kernel() -> tuple[int, Any]:
    """Address of the C function, and what keeps it alive."""

    def run_program(program: Any) -> None:
        run_calls(program)

    folders = [folder / source_digest() for folder in (kernel_folder(), *kept_apart())]
    compiled_function = c_function(types.void(JobType("Program", PROGRAM)), run_program, folders)
    return int(compiled_function.address), compiled_function


class Program:
    """Owns: the table of calls, their jobs, and the list of copies. Never: the memory that jobs point to."""

    def __init__(self, calls: Sequence[KernelCall], copies: Sequence[tuple[int, int]], team: Team) -> None:
        """`copies`: (to, from), addresses of an int64 each; carried out at the start of every run."""
        self._kept = tuple(calls)
        memory = np.zeros(_CALL_BYTES * (len(calls) + 2), np.uint8)
        start = -memory.ctypes.data % _CALL_BYTES
        self._calls = memory[start : start + _CALL_BYTES * (len(calls) + 1)].view(np.int64).reshape(-1, 8)
        self._copies = np.array(copies, np.int64).reshape(-1, 2)
        self._team = team
        self._kernel = _run_kernel()[0]
        self._record = Record(
            PROGRAM,
            {
                "calls": self._calls.ctypes.data,
                "num_calls": len(calls) + 1,
                "copies": self._copies.ctypes.data,
                "num_copies": len(copies),
                "give_way": team.give_way,
            },
        )
        # The first call, of the copies, has no job; what it counts is in the program itself.
        self._calls[0, :3] = 0, self._record.address, 1
        for number, call in enumerate(calls, 1):
            self._calls[number, :3] = call.kernel, call.record.address, call.num_counters
            call.record.array.view(np.int64)[: call.num_counters] = 0

    def run(self, num_threads: int) -> None:
        """Runs all calls on `num_threads` threads."""
        self._calls[:, 3] = 0
        self._team.run(self._kernel, self._record.address, num_threads)
