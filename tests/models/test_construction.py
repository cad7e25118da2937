"""What is changed of models that are constructed meanwhile."""

from __future__ import annotations

import pytest

from octavo.models.construction import after_construction


class _Model:
    def __init__(self, size: int) -> None:
        self.size = size
        self.changes = 0


class _Larger(_Model):
    def __init__(self, size: int) -> None:
        super().__init__(2 * size)


def _change(model: _Model) -> None:
    model.changes += model.size


def test_models_of_the_class_alone_are_changed_once_they_are_whole() -> None:
    with after_construction(_Model, _change):
        assert _Model(3).changes == 3, "changed behind its construction"
        assert _Larger(3).changes == 0, "a subclass is another model"
    assert _Model(3).changes == 0


def test_changes_of_several_come_in_the_order_in_which_they_were_asked_for() -> None:
    seen: list[str] = []
    first, second = (after_construction(_Model, lambda _, name=name: seen.append(name)) for name in ("first", "second"))
    with first, second:
        _Model(1)
    assert seen == ["first", "second"]


def test_the_class_is_as_before_after_an_error() -> None:
    original = _Model.__init__
    with pytest.raises(ValueError, match="no"), after_construction(_Model, _change):
        raise ValueError("no")
    assert _Model.__init__ is original
