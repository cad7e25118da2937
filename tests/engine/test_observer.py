"""Who watches nothing has every hook; tests/engine/test_post_office.py watches with some."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from octavo.engine.observer import EngineObserver, GuardedObserver, NoObserver


def test_every_hook_may_be_left_out() -> None:
    hooks = {name for name, _ in inspect.getmembers(EngineObserver, inspect.isfunction) if not name.startswith("_")}
    assert len(hooks) == 6
    for name in hooks:
        expected = list(inspect.signature(getattr(EngineObserver, name)).parameters)
        assert list(inspect.signature(getattr(NoObserver, name)).parameters) == expected


def test_a_failing_watcher_is_logged_once_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    hooks = [name for name, _ in inspect.getmembers(EngineObserver, inspect.isfunction) if not name.startswith("_")]

    class Lame:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 1 // 0

    lame: Any = Lame()
    guarded = GuardedObserver(lame)
    for name in (*hooks, *hooks):
        hook = getattr(guarded, name)
        hook(*[None] * len(inspect.signature(hook).parameters))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"The observer failed in {name}" for name in hooks
    ]
