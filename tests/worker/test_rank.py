"""The surface of a rank."""

from __future__ import annotations

import inspect

import pytest

from octavo.executor.rank_calls import encode_call
from octavo.worker.rank import Rank
from octavo.worker.wrapper import WorkerWrapper
from tests.null_executor import NullRank

METHODS = dict(inspect.getmembers(Rank, inspect.isfunction))


@pytest.mark.parametrize("kind", [WorkerWrapper, NullRank])
def test_what_stands_for_a_rank_has_its_signatures(kind: type[Rank]) -> None:
    for name, function in METHODS.items():
        assert inspect.signature(getattr(kind, name)) == inspect.signature(function), name


def test_every_method_can_travel() -> None:
    for name in METHODS:
        encode_call(name, ())
