"""Who watches nothing has every hook; tests/engine/test_post_office.py watches with some."""

from __future__ import annotations

import inspect

from octavo.engine.observer import EngineObserver, NoObserver


def test_every_hook_may_be_left_out() -> None:
    hooks = {name for name, _ in inspect.getmembers(EngineObserver, inspect.isfunction) if not name.startswith("_")}
    assert len(hooks) == 6
    for name in hooks:
        expected = list(inspect.signature(getattr(EngineObserver, name)).parameters)
        assert list(inspect.signature(getattr(NoObserver, name)).parameters) == expected
