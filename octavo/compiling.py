"""Functions compiled by numba, and where their machine code is kept.

In `__pycache__` beside the source, or in numba's own folder of the user; where neither can be written (an installation
that is read only, a user without a home), in `kernels` of Octavo's cache folder; where nothing can be, in memory alone,
so that each process compiles anew. Several processes may start at once: numba renames whole files into place, and what
is kept in a given folder is compiled by one of them while the others wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numba

if sys.platform != "win32":
    import fcntl

from octavo.config import find_cache_dir
from octavo.errors import ConfigError

_Function = TypeVar("_Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

PATIENCE_S = 180.0
"""So long one process waits for another that compiles, which may have been stopped meanwhile; then it does so too."""

_redirecting = threading.Lock()
"""Held while numba's setting is another: modules may be imported by several threads."""


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Decorator: `numba.njit(**options)`, its machine code made at the first call, and kept.

    A function so compiled calls only functions of its own file, because numba compiles anew when that file changes and
    looks at no other.
    """

    def decorate(function: _Function) -> _Function:
        made: _Function = _kept_anywhere(lambda *, keep: numba.njit(cache=keep, **options)(function))
        return made

    return decorate


def c_function(signature: Any, function: Callable[..., None], folders: Sequence[Path] = ()) -> Any:
    """`function` as a C function of numba's: read from where it was kept, else compiled now.

    It is kept in the first of `folders` that can be written, and nowhere else; without any, where `compiled` keeps its.
    """
    if not folders:
        return _kept_anywhere(lambda *, keep: numba.cfunc(signature, cache=keep)(function))
    folder = next(filter(_can_write, folders), None)
    if folder is None:
        return numba.cfunc(signature)(function)
    with _keeping_in(folder), _one_process(folder):
        if not any(folder.rglob("*.nbi")):
            logger.warning("Compiling kernels for this processor: once, a minute or so. They are kept in %s.", folder)
        return numba.cfunc(signature, cache=True)(function)


@contextlib.contextmanager
def _one_process(folder: Path) -> Iterator[None]:
    """Inside this, no other process is: ranks that start together need the same machine code, and one makes it.

    Where files cannot be locked, and after `PATIENCE_S` of waiting, each makes its own.
    """
    with contextlib.ExitStack() as held:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                lock = held.enter_context((folder / "compiling.lock").open("w"))
                _lock_in_time(lock.fileno())
        yield


def _lock_in_time(file: int) -> None:
    """Raises `OSError` when the file cannot be locked within `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def _kept_anywhere(make: Callable[..., Any]) -> Any:
    """`make(keep=True)`, in numba's place or ours; `make(keep=False)` where neither can be written."""
    try:
        return make(keep=True)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
    for folder in filter(_can_write, kept_apart()):
        with _keeping_in(folder):
            return make(keep=True)
    return make(keep=False)


def kept_apart() -> list[Path]:
    """Where machine code is kept when it cannot be beside its source; empty where there is no cache folder."""
    try:
        return [find_cache_dir() / "kernels"]
    except ConfigError:
        return []


def _can_write(folder: Path) -> bool:
    """Whether files can be put into `folder`, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _keeping_in(folder: Path) -> Iterator[None]:
    """Makes numba prefer `folder` meanwhile."""
    with _redirecting:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            numba.config.CACHE_DIR = before
