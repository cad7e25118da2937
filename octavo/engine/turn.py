"""Whose turn it is: callers in several threads share one engine core, which serves one run at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import OctavoError, RequestError


class Turn:
    """Lets one run at a time use an engine core.

    Owns: the lock, and which thread has it. Never: is taken again by the thread that has it, which would wait for
    itself.
    """

    def __init__(self) -> None:
        # Not an RLock: a run that its caller dropped may be closed by another thread, which only a plain lock allows.
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._is_closed = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until no other thread has the turn, and have it inside the block.

        Raises `RequestError` when this thread has it already, and `OctavoError` when the engine is shut down.
        """
        self.require_open()
        if self._is_mine:
            raise RequestError(
                "A run of this thread has not ended.", remedy="Read it to its end, or close it, before the next."
            )
        with self._held():
            self.require_open()
            yield

    @contextmanager
    def shared(self) -> Iterator[None]:
        """As `taken`, but inside a run of this thread it is that run's turn."""
        self.require_open()
        if self._is_mine:
            yield
            return
        with self.taken():
            yield

    @contextmanager
    def last(self) -> Iterator[None]:
        """Wait for the run of another thread to end; then nobody has a turn again. May be used twice."""
        if self._is_mine:
            self._is_closed = True
            yield
            return
        with self._held():
            self._is_closed = True
            yield

    def require_open(self) -> None:
        """Raises `OctavoError` when the engine is shut down."""
        if self._is_closed:
            raise OctavoError("This LLM was shut down.", remedy="Make a new one.")

    @property
    def _is_mine(self) -> bool:
        return self._owner == threading.get_ident()

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None
