"""Threads that run one kernel together.

A kernel is a C function of one argument, an address. Every member of a team calls it with the same argument; the
members share the work out among themselves.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

Kernel = Callable[[int], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""Calling such a function lets other Python threads run meanwhile."""


class Team(ABC):
    """Runs a kernel on several threads at once, the caller's among them."""

    def __init__(self) -> None:
        function = getattr(ctypes.CDLL(None), "sched_yield", None)
        self.give_way = 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)
        """Address of a C function without arguments that lets other threads run, for kernels that wait; 0 is none."""

    @abstractmethod
    def run(self, kernel: int, argument: int, num_threads: int) -> None:
        """Calls the C function at address `kernel` on `num_threads` threads; returns when all are done."""


class OpenMPTeam(Team):
    """The very threads that torch computes with, through the OpenMP runtime that torch loaded.

    Between a linear layer and an attention layer they are still awake, and no second set of threads competes with them.
    """

    def __init__(self, parallel: Any) -> None:
        super().__init__()
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        self._parallel = parallel

    def run(self, kernel: int, argument: int, num_threads: int) -> None:
        if num_threads > 1:
            self._parallel(kernel, argument, num_threads, 0)
        else:
            _PROTOTYPE(kernel)(argument)


class ThreadTeam(Team):
    """Python threads of its own, for a torch without GNU OpenMP. They start when first needed and sleep in between.

    Owns: its threads, which end with the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks: queue.SimpleQueue[tuple[Kernel, int]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_threads = 1

    def run(self, kernel: int, argument: int, num_threads: int) -> None:
        function = _PROTOTYPE(kernel)
        while self._num_threads < num_threads:
            self._num_threads += 1
            threading.Thread(target=self._work, name=f"attention-{self._num_threads}", daemon=True).start()
        for _ in range(num_threads - 1):
            self._tasks.put((function, argument))
        function(argument)
        for _ in range(num_threads - 1):
            self._done.get()

    def _work(self) -> None:
        while True:
            function, argument = self._tasks.get()
            function(argument)
            self._done.put(None)


def make_team() -> Team:
    """A team on torch's own threads where torch uses GNU OpenMP (or a runtime with its entry points), else threads."""
    try:
        return OpenMPTeam(ctypes.CDLL(None).GOMP_parallel)
    except (AttributeError, OSError):
        return ThreadTeam()
