"""Changes that are made to a model between its construction and the reading of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def after_construction(model_class: Any, change: Callable[[Any], None]) -> Iterator[None]:
    """Calls `change` with each model of this class, but of no subclass, as soon as it is constructed inside."""
    original = model_class.__init__

    def construct(model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        if type(model) is model_class:
            change(model)

    try:
        model_class.__init__ = construct
        yield
    finally:
        model_class.__init__ = original
