from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.engine.turn import Turn
from octavo.errors import OctavoError, RequestError


def test_a_turn_is_had_by_one_thread_and_waited_for_by_others() -> None:
    turn, waiting = Turn(), threading.Event()
    order: list[str] = []

    def other() -> None:
        waiting.set()
        with turn.taken():
            order.append("second")

    with ThreadPoolExecutor(max_workers=1) as pool:
        with turn.taken():
            future = pool.submit(other)
            assert waiting.wait(timeout=20)
            order.append("first")
        future.result(timeout=20)
    assert order == ["first", "second"]


def test_a_thread_does_not_wait_for_itself() -> None:
    turn = Turn()
    with turn.taken(), turn.shared(), pytest.raises(RequestError, match="has not ended"), turn.taken():
        raise AssertionError("two runs at once")
    with turn.shared(), pytest.raises(RequestError), turn.taken():
        raise AssertionError("two runs at once")


def test_an_error_gives_the_turn_back() -> None:
    turn = Turn()
    with pytest.raises(ZeroDivisionError), turn.taken():
        raise ZeroDivisionError
    with turn.taken():
        pass


def test_who_waits_while_the_engine_is_shut_down_gets_no_turn() -> None:
    turn, waiting = Turn(), threading.Event()

    def other() -> None:
        turn.require_open()
        waiting.set()
        with turn.taken():
            raise AssertionError("a turn after the last one")

    with ThreadPoolExecutor(max_workers=1) as pool:
        with turn.taken():
            future = pool.submit(other)
            assert waiting.wait(timeout=20)
            with turn.last():
                pass
        with pytest.raises(OctavoError, match="shut down"):
            future.result(timeout=20)
    with turn.last():
        pass
