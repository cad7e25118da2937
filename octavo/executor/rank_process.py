"""The process of one rank: `python -m octavo.executor.rank_process CALLS PULSE MODULE:CLASS`, started by an executor.

CALLS and PULSE are the numbers of two inherited sockets. Calls come one at a time through the first and are answered
there, in the main thread. A second thread answers whatever comes through the other, so that a rank that computes is not
taken for one that hangs; when that socket closes, whoever started the rank is gone, and the process ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Any

from octavo.executor.frames import FrameSocket, framed
from octavo.executor.rank_calls import decode_start
from octavo.executor.rank_host import RankHost, find_rank_class
from octavo.importing import collect_from_now, hurry, import_torch

ORPHANED = 3
"""Exit code of a rank whose executor is gone."""


def serve(calls: FrameSocket, make_rank: Any) -> int:
    """Answer calls until `shutdown` was one or the connection closes; the exit code of the process."""
    try:
        host = RankHost(decode_start(calls.receive()), make_rank)
        while True:
            method, answer = host.answer(calls.receive())
            calls.send(framed(answer))
            if method == "shutdown":
                return 0
    except (EOFError, ConnectionError):
        return ORPHANED


def _beat(pulse: socket.socket) -> None:
    """Send back what comes, until the other side is gone."""
    try:
        while beat := pulse.recv(64):
            pulse.sendall(beat)
    except OSError:
        pass
    os._exit(ORPHANED)


def main(arguments: list[str]) -> int:
    """Run the rank that the command line describes."""
    # A signal to the whole group, such as Ctrl-C, is the executor's to act on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, pulse = (socket.socket(fileno=int(number)) for number in arguments[:2])
    threading.Thread(target=_beat, args=(pulse,), name="pulse", daemon=True).start()
    return serve(FrameSocket(calls), _import_rank(arguments[2]))


def _import_rank(path: str) -> Any:
    """The rank's class. Octavo's own is imported as a command's libraries are: this process has no other use."""
    if not path.startswith("octavo."):
        return find_rank_class(path)
    with hurry():
        import_torch()
        found = find_rank_class(path)
        collect_from_now()
    return found


if __name__ == "__main__":
    # Not exit(): threads of libraries must not keep a rank alive that was told to end.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
