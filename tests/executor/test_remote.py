"""What executors of ranks elsewhere have in common, on ranks that are nowhere: answers are made up here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.errors import ExecutorError
from octavo.executor.multiproc import MultiprocExecutor
from octavo.executor.rank_calls import decode_call, encode_result
from octavo.executor.remote import MOST_SILENT_S, WORKER_RANK, RemoteExecutor

CONFIG = EngineConfig(model=ModelSource(model="demo"))


class Nowhere(RemoteExecutor):
    """Two ranks that answer what `answers` says. Owns: the calls that it was asked for."""

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.calls: list[str] = []
        self.fails_at = ""
        self.count = 0

    @property
    def num_ranks(self) -> int:
        return self.count

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        self.count = 2
        self.calls.append("met")
        yield
        self.calls.append("left")

    def _ask(self, call: bytes, timeout_s: float | None) -> list[bytes]:
        method, _ = decode_call(call)
        self.calls.append(method)
        if method == self.fails_at:
            raise ExecutorError("It failed.", remedy="None.")
        return [encode_result(None)] * 2

    def _check_ranks(self) -> None:
        self.calls.append("looked")

    def shutdown(self) -> None:
        self.count = 0


def test_ranks_meet_before_they_load() -> None:
    executor = Nowhere(CONFIG)
    executor.start()
    assert executor.calls == ["met", "init_device", "left", "load_model"]
    executor.warm_up()
    executor.check_health()
    assert executor.calls[4:] == ["warm_up", "looked"]


def test_a_second_start_and_a_call_before_the_first_are_refused() -> None:
    executor = Nowhere(CONFIG)
    for call in (executor.warm_up, executor.check_health):
        with pytest.raises(ExecutorError, match="not running"):
            call()
    executor.start()
    with pytest.raises(ExecutorError, match="started twice"):
        executor.start()
    assert executor.num_ranks == 2


@pytest.mark.parametrize("method", ["init_device", "load_model"])
def test_a_failed_start_leaves_nothing_running(method: str) -> None:
    executor = Nowhere(CONFIG)
    executor.fails_at = method
    with pytest.raises(ExecutorError, match="It failed"):
        executor.start()
    assert executor.num_ranks == 0


def test_all_of_them_take_the_same_options() -> None:
    executor = MultiprocExecutor(CONFIG)
    assert (executor._rank_class, executor._silence_s) == (WORKER_RANK, MOST_SILENT_S)
    assert MultiprocExecutor(CONFIG, silence_s=1.5)._silence_s == 1.5
