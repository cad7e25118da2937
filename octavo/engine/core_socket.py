"""A process that serves one core over a socket.

It ends when it is told to, and when whoever started it is gone: standard input is a pipe that closes then.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import threading
from pathlib import Path

import zmq

from octavo.engine.core_loop import CoreLoop, MakeCore
from octavo.engine.log_format import set_up_logging

TELL_THREADS = signal.SIGUSR1
"""The signal at which a core writes to its log what each of its threads is doing, whatever it is in the middle of."""

ORPHANED = 3
"""Exit code of a core whose front end is gone."""


def serve(address: str, make_core: MakeCore, log_format: str = "text") -> int:
    """Connect to `address`, an `ipc://` path, and run a core there, which logs in `log_format`; the exit code of the
    process."""
    # Whoever started this process decides when it ends; a signal to the whole group must not cut a drain short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(TELL_THREADS, all_threads=True)
    set_up_logging(log_format)
    threading.Thread(target=_end_with_the_front, args=(address,), name="front-watch", daemon=True).start()
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(address)
    try:
        return CoreLoop(socket, make_core).run()
    finally:
        socket.close()
        context.term()


def _end_with_the_front(address: str) -> None:
    """Wait until the pipe from the front end closes, then end this process and what it left on the disk."""
    # Not through sys.stdin, whose lock this thread would hold while the interpreter ends.
    while os.read(0, 1):
        pass
    shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)
    os._exit(ORPHANED)
