"""How often a core is started again."""

from __future__ import annotations

import asyncio

import pytest

from octavo.engine import restarts
from octavo.engine.restarts import Restarts
from octavo.errors import EngineDeadError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        assert 1 <= seconds <= 30

    monkeypatch.setattr(restarts.asyncio, "sleep", sleep)


def attempt(count: Restarts, num_failures: int) -> str | None:
    left = num_failures

    async def start() -> str:
        nonlocal left
        if left:
            left -= 1
            raise EngineDeadError("It died at once.")
        return "ready"

    return asyncio.run(count.attempt(start))


def test_it_is_tried_as_often_as_may_be() -> None:
    count = Restarts("core", 3)
    assert attempt(count, 2) == "ready"
    assert count.in_a_row == 3
    assert attempt(count, 0) is None, "three in a row"
    assert attempt(Restarts("core", 0), 0) is None


def test_good_health_makes_the_count_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Restarts("core", 1)
    count.note_start()
    count.note_death()
    assert attempt(count, 0) == "ready"
    count.note_start()
    count.note_death()
    assert attempt(count, 0) is None
    monkeypatch.setattr(restarts, "HEALTHY_S", 0.0)
    count.note_death()
    assert attempt(count, 0) == "ready"
