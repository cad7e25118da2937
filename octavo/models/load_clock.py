"""How long the parts of loading a model take, for whoever asks: a decorator on the functions that are those parts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class Part(NamedTuple):
    """One part of a loading, done."""

    name: str
    seconds: float


_watched: ContextVar[list[Part] | None] = ContextVar("watched", default=None)


def part(name: str) -> Callable[[Callable[_Given, _Made]], Callable[_Given, _Made]]:
    """Decorator: a call is noted as the part `name` where somebody watches. Parts within parts are none."""

    def decorate(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
        @functools.wraps(function)
        def timed(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
            parts = _watched.get()
            if parts is None:
                return function(*args, **kwargs)
            token = _watched.set(None)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                parts.append(Part(name, time.perf_counter() - started))
                _watched.reset(token)

        return timed

    return decorate


@contextmanager
def watch_parts() -> Iterator[list[Part]]:
    """The parts done inside this, in order."""
    parts: list[Part] = []
    token = _watched.set(parts)
    try:
        yield parts
    finally:
        _watched.reset(token)
