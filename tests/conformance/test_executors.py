"""The executor contract, for every executor: one suite, run on the null ranks and on real ranks of a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig
from octavo.errors import ConfigError, ExecutorError
from octavo.executor import inproc
from octavo.executor.executor import Executor
from octavo.executor.inproc import InprocExecutor
from octavo.executor.multiproc import MultiprocExecutor
from octavo.executor.registry import find_executor
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from octavo.messages import NewRequestData, SchedulerOutput
from octavo.request import SamplingParams
from tests.executor.ray_cluster import local_cluster
from tests.null_executor import NullExecutor, NullRank
from tests.parity.tiny import HYBRID

SPECS: dict[str, LayerSpec] = {
    "layers.0": FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="float32"),
    "layers.1": SlidingWindowSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="float32", window=6),
}

EMPTY_STEP = SchedulerOutput(step=1, num_scheduled_tokens={}, new_requests=[], finished_request_ids=[])


def null(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    return NullExecutor([SPECS, SPECS])


def inproc_on_a_null_rank(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    def wrapper(config: EngineConfig, *, global_rank: int, local_rank: int) -> NullRank:
        return NullRank(SPECS, global_rank=global_rank, vocab_size=64, available_bytes=1 << 20)

    monkeypatch.setattr(inproc, "WorkerWrapper", wrapper)
    return InprocExecutor(EngineConfig(model=ModelSource(model="none")))


def tiny_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> EngineConfig:
    monkeypatch.setenv("OCTAVO_ATTENTION_BACKEND", "torch_reference")
    (folder / "config.json").write_text(json.dumps({**HYBRID, "architectures": ["Gemma3ForCausalLM"]}))
    source = ModelSource(model=str(folder), load_format="dummy", dtype="float32")
    return EngineConfig(model=source, cache=CacheConfig(block_size=4, kv_memory_bytes=1 << 20))


def inproc_on_a_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    return InprocExecutor(tiny_model(monkeypatch, folder))


def multiproc_on_null_ranks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    config = EngineConfig(model=ModelSource(model="none"), parallel=ParallelConfig(tensor_parallel_size=2))
    return MultiprocExecutor(config, rank_class="tests.executor.process_ranks:Null")


def multiproc_on_a_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    return MultiprocExecutor(tiny_model(monkeypatch, folder))


def ray_on_null_ranks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    config = EngineConfig(
        model=ModelSource(model="none"), parallel=ParallelConfig(tensor_parallel_size=2, executor="ray")
    )
    return find_executor("ray")(config, rank_class="tests.executor.process_ranks:Null")  # type: ignore[call-arg]


def ray_on_a_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Executor:
    return find_executor("ray")(tiny_model(monkeypatch, folder))  # type: ignore[call-arg]


EXECUTORS = [
    pytest.param(null, id="null"),
    pytest.param(inproc_on_a_null_rank, id="inproc-null"),
    pytest.param(inproc_on_a_model, id="inproc-model", marks=pytest.mark.slow),
    pytest.param(multiproc_on_null_ranks, id="multiproc-null"),
    pytest.param(multiproc_on_a_model, id="multiproc-model", marks=pytest.mark.slow),
    pytest.param(ray_on_null_ranks, id="ray-null", marks=pytest.mark.slow),
    pytest.param(ray_on_a_model, id="ray-model", marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Of Ray; skips where that is not installed."""
    with local_cluster():
        yield


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if request.param in (ray_on_null_ranks, ray_on_a_model):
        request.getfixturevalue("cluster")
    made = request.param(monkeypatch, tmp_path)
    yield made
    made.shutdown()


def prepare(executor: Executor) -> None:
    """The start-up of the contract, in its order."""
    executor.start()
    specs = executor.get_kv_cache_specs()
    plan = plan_kv_cache(
        specs,
        executor.determine_available_memory(),
        PlanOptions(max_model_len=32, max_num_batched_tokens=16),
        shared_layers_by_rank=executor.get_shared_layers(),
    )
    executor.initialize_from_config(list(plan.configs))
    executor.warm_up()


def first_step(executor: Executor) -> SchedulerOutput:
    """One request of six tokens, in blocks 1, 2, ... of each group."""
    specs = executor.get_kv_cache_specs()[0]
    plan = plan_kv_cache([specs], [1 << 20], PlanOptions(max_model_len=32, max_num_batched_tokens=16))
    tables = tuple([2 * group + 1, 2 * group + 2] for group in range(len(plan.groups)))
    new = NewRequestData(
        request_id="a",
        token_ids=[5, 6, 7, 8, 9, 10],
        num_prompt_tokens=6,
        sampling=SamplingParams(temperature=0, max_tokens=3),
        eos_token_ids=(),
        num_computed_tokens=0,
        block_ids=tables,
    )
    return SchedulerOutput(step=1, num_scheduled_tokens={"a": 6}, new_requests=[new], finished_request_ids=[])


def test_a_start_and_a_step(executor: Executor) -> None:
    prepare(executor)
    executor.check_health()
    output = executor.execute_model(first_step(executor))
    assert list(output.sampled) == ["a"]
    assert 0 <= output.sampled["a"] < HYBRID["vocab_size"]


def test_one_answer_per_rank_in_the_order_of_ranks(executor: Executor) -> None:
    prepare(executor)
    num_ranks = len(executor.get_kv_cache_specs())
    assert len(executor.get_shared_layers()) == len(executor.determine_available_memory()) == num_ranks
    reports = executor.collective_rpc("stage_reports")
    assert [{report.rank for report in of_rank} for of_rank in reports] == [{rank} for rank in range(num_ranks)]
    assert all("load_model" in [report.name for report in of_rank] for of_rank in reports)


def test_nothing_answers_before_the_start_or_after_the_end(executor: Executor) -> None:
    with pytest.raises(ExecutorError, match="is not running"):
        executor.check_health()
    with pytest.raises(ExecutorError, match="is not running"):
        executor.get_kv_cache_specs()
    executor.start()
    executor.check_health()
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(ExecutorError, match="is not running"):
        executor.execute_model(EMPTY_STEP)


def test_an_executor_can_be_started_again_after_its_end(executor: Executor) -> None:
    executor.start()
    executor.shutdown()
    prepare(executor)
    assert executor.execute_model(first_step(executor)).sampled


@pytest.mark.parametrize(("raised", "expected"), [(ConfigError("A mistake."), ConfigError), (OSError(5, "bad"), None)])
def test_what_a_rank_raises(
    raised: Exception, expected: type[Exception] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executor = inproc_on_a_null_rank(monkeypatch, tmp_path)
    executor.start()

    def fail(self: NullRank) -> None:
        raise raised

    monkeypatch.setattr(NullRank, "warm_up", fail)
    with pytest.raises(expected or ExecutorError) as caught:
        executor.warm_up()
    if expected is not None:
        assert caught.value is raised, "an error that says what to do comes through as it is"
    else:
        assert "Rank 0 failed in warm_up: OSError: [Errno 5] bad" in str(caught.value)
        assert caught.value.__cause__ is raised
