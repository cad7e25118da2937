"""Parts of a loading are noted where somebody watches, in order, whole ones only."""

from __future__ import annotations

import threading

import pytest

from octavo.models.load_clock import part, watch_parts


@part("inner")
def _inner() -> int:
    return 3


@part("outer")
def _outer() -> int:
    return _inner() + 1


@part("failing")
def _fail() -> None:
    raise KeyError("no")


def test_parts_are_noted_in_order_and_parts_within_parts_are_not() -> None:
    with watch_parts() as parts:
        assert (_outer(), _inner()) == (4, 3)
    assert [name for name, _ in parts] == ["outer", "inner"]
    assert all(0 <= seconds < 1 for _, seconds in parts)


def test_nobody_watches_before_and_after() -> None:
    assert _outer() == 4
    with watch_parts() as parts:
        pass
    assert _outer() == 4
    assert parts == []


def test_a_part_that_fails_is_noted_and_ends() -> None:
    with watch_parts() as parts:
        with pytest.raises(KeyError):
            _fail()
        _inner()
    assert [name for name, _ in parts] == ["failing", "inner"]


def test_another_thread_is_another_loading() -> None:
    with watch_parts() as parts:
        thread = threading.Thread(target=_inner)
        thread.start()
        thread.join()
    assert parts == []
