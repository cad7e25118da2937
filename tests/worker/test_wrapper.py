"""The surface of a rank: it takes its own config out of the list of all."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.errors import ExecutorError, InvariantError
from octavo.kv.specs import KVCacheConfig
from octavo.messages import Rendezvous
from octavo.worker import wrapper
from octavo.worker.wrapper import WorkerWrapper

CONFIGS = [
    KVCacheConfig(num_blocks=10 + rank, groups=(), tensors=(), max_model_len=8, max_chunk_tokens=8) for rank in range(4)
]


class FakeWorker:
    """Records what it was told."""

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int, rendezvous: Rendezvous) -> None:
        self.ranks = (global_rank, local_rank)
        self.calls: list[object] = []
        self.reports = ["a report"]

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self.calls.append(config)

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper, "Worker", FakeWorker)


def engine_config(world_size: int) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="demo"), parallel=ParallelConfig(tensor_parallel_size=world_size))


def started(global_rank: int, local_rank: int = 0, world_size: int = 4) -> WorkerWrapper:
    rank = WorkerWrapper(engine_config(world_size), global_rank=global_rank, local_rank=local_rank)
    rank.init_worker(Rendezvous())
    return rank


@pytest.mark.parametrize("global_rank", range(4))
def test_each_rank_takes_the_config_of_its_global_rank(global_rank: int) -> None:
    rank = started(global_rank, local_rank=global_rank % 2)
    rank.initialize_from_config(CONFIGS)
    worker = rank._worker
    assert isinstance(worker, FakeWorker)
    assert worker.calls == [CONFIGS[global_rank]]
    assert worker.ranks == (global_rank, global_rank % 2)


@pytest.mark.parametrize("configs", [[], CONFIGS[:3], [*CONFIGS, CONFIGS[0]]])
def test_a_list_of_another_length_is_refused(configs: list[KVCacheConfig]) -> None:
    rank = started(1)
    with pytest.raises(ExecutorError, match=f"Rank 1 was sent {len(configs)} cache configs, and there are 4 ranks"):
        rank.initialize_from_config(configs)


def test_a_rank_answers_only_between_init_worker_and_shutdown() -> None:
    rank = WorkerWrapper(engine_config(1), global_rank=0, local_rank=0)
    rank.shutdown()
    with pytest.raises(ExecutorError, match=r"Rank 0 has no worker\. Call init_worker first"):
        rank.load_model()
    rank.init_worker(Rendezvous())
    worker = rank._worker
    assert rank.stage_reports() == ["a report"]
    rank.shutdown()
    rank.shutdown()
    assert isinstance(worker, FakeWorker)
    assert worker.calls == ["shutdown"]
    with pytest.raises(ExecutorError, match="has no worker"):
        rank.stage_reports()


@pytest.mark.parametrize(("global_rank", "local_rank"), [(-1, 0), (4, 0), (1, 2), (0, -1)])
def test_impossible_ranks_are_a_bug(global_rank: int, local_rank: int) -> None:
    with pytest.raises(InvariantError, match=f"global rank {global_rank} and local rank {local_rank} of 4 ranks"):
        WorkerWrapper(engine_config(4), global_rank=global_rank, local_rank=local_rank)
