"""The executor of this process, beyond the contract that tests/conformance checks."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.errors import ConfigError, ModelFileError
from octavo.executor import inproc
from octavo.executor.inproc import InprocExecutor
from octavo.messages import Rendezvous


def config(**parallel: int) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="demo"), parallel=ParallelConfig(**parallel))


def test_several_ranks_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        InprocExecutor(config(tensor_parallel_size=2, pipeline_parallel_size=3))
    assert "6 ranks (--tensor-parallel-size 2 x --pipeline-parallel-size 3)" in str(caught.value)
    assert "'inproc'" in str(caught.value)
    assert caught.value.numbers == {"world_size": 6}


def test_nothing_is_made_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    class Wrapper:
        def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
            made.append((global_rank, local_rank))

        def __getattr__(self, name: str):
            return lambda *args: None

    monkeypatch.setattr(inproc, "WorkerWrapper", Wrapper)
    executor = InprocExecutor(config())
    assert made == []
    executor.start()
    assert made == [(0, 0)]


def test_a_failed_start_frees_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Wrapper:
        def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
            pass

        def init_worker(self, rendezvous: Rendezvous) -> None:
            calls.append("init_worker")

        def init_device(self) -> None:
            raise ModelFileError("There is no such file.")

        def shutdown(self) -> None:
            calls.append("shutdown")

    monkeypatch.setattr(inproc, "WorkerWrapper", Wrapper)
    with pytest.raises(ModelFileError):
        InprocExecutor(config()).start()
    assert calls == ["init_worker", "shutdown"]
