"""Layers divided over ranks: whatever the scheduler and the cache do, and on real weights, the tokens of one rank."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError, UnsupportedModelError
from octavo.messages import MemoryReport
from tests.executor.test_multiproc import ranks_of
from tests.parity.recorded import load
from tests.parity.reference import Greedy, count_excused
from tests.parity.tiny import HYBRID
from tests.parity.toy import Toy

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("hybrid"), HYBRID, lengths=(1, 17, 33, 70), forks=(16, 36))


@pytest.fixture
def no_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing runs and nothing lies about afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not ranks_of(os.getpid())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_processes_give_the_tokens_of_one_and_a_dead_one_ends_both(toy: Toy, no_traces: None) -> None:
    """One start: chunks and prefix hits first, then preemption, then the end of a rank."""
    order = list(range(len(toy.prompts)))
    llm = toy.llm(tensor_parallel_size=2, kv_memory="2MiB,1MiB", max_num_batched_tokens=37, block_size=4)
    try:
        processes = ranks_of(os.getpid())
        assert len(processes) == 2
        configs = llm.plan.configs
        assert configs[0].num_blocks == configs[1].num_blocks == (1 << 20) // sum_of_block(configs[1])
        toy.check(llm, order)
        assert toy.check(llm, order) > 50
        os.kill(processes[1].pid, signal.SIGKILL)
        before = time.monotonic()
        outputs = llm.generate(
            [{"prompt_token_ids": [5, 6, 7]}], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False
        )
        pytest.fail(f"no error: {outputs}")
    except OctavoError as error:
        assert "was killed by SIGKILL; all ranks were stopped" in str(error)
        assert time.monotonic() - before < 10
    finally:
        llm.shutdown()


def sum_of_block(config: Any) -> int:
    """Bytes of one block of a rank."""
    return sum(tensor.size_bytes for tensor in config.tensors) // config.num_blocks


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_a_pool_that_holds_one_request_preempts_and_changes_nothing(toy: Toy, size: int, no_traces: None) -> None:
    options = {"block_size": 2, "max_model_len": 83, "enable_prefix_caching": False}
    blocks = toy.smallest_pool(**options)
    order = [0] * 16 + list(range(len(toy.prompts)))  # short ones, which all begin at once and then grow
    with toy.llm(tensor_parallel_size=size, num_blocks_override=blocks, **options) as llm:
        toy.check(llm, order)
        assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.long)])
def test_each_rank_allocates_what_was_planned_to_the_byte(toy: Toy, size: int, no_traces: None) -> None:
    """Four ranks have copies of two KV heads."""
    config = EngineConfig(
        model=ModelSource(model=str(toy.folder), dtype="float32"),
        cache=CacheConfig(kv_memory_bytes=1 << 20),
        parallel=ParallelConfig(tensor_parallel_size=size),
    )
    core = EngineCore(config)
    try:
        reports: list[MemoryReport] = core.report_memory()
        planned = [sum(tensor.size_bytes for tensor in part.tensors) for part in core.plan.configs]
        assert [report.storage_bytes for report in reports] == planned
        heads = {spec.num_kv_heads for part in core.plan.configs for spec in (group.spec for group in part.groups)}
        assert heads == {1}
    finally:
        core.shutdown()


@pytest.mark.slow
def test_heads_that_cannot_be_divided_are_refused_before_ranks_start(toy: Toy, no_traces: None) -> None:
    before = time.monotonic()
    with pytest.raises(UnsupportedModelError, match="3, which does not divide the 4 query heads") as caught:
        toy.llm(tensor_parallel_size=3)
    assert caught.value.remedy == "Set it to one of 1, 2, 4."
    assert time.monotonic() - before < 5


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "size", "num_stages", "count", "num_tokens"),
    [
        ("demo", 2, 1, 12, 16),
        ("demo", 4, 1, 12, 16),
        ("demo-smollm2", 3, 1, 12, 16),
        # On two cores a sum of nine processes takes milliseconds, and a step has 61.
        ("demo-smollm2", 9, 1, 4, 8),
        ("demo-smollm2", 3, 2, 4, 8),
    ],
)
def test_real_models_give_transformers_tokens(
    name: str, size: int, num_stages: int, count: int, num_tokens: int, no_traces: None
) -> None:
    recording = load(name)
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in recording.prompts[:count]]
    options: dict[str, Any] = {"dtype": "float32", "kv_memory": "256MiB", "max_model_len": 1024}
    ranks = {"tensor_parallel_size": size, "pipeline_parallel_size": num_stages}
    with LLM(name, max_num_batched_tokens=300, **ranks, **options) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    expected = [Greedy(one.token_ids[:num_tokens], one.margins[:num_tokens]) for one in recording.outputs[:count]]
    assert count_excused(tokens, expected) <= 1
