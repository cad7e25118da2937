"""Greedy float32 output on real weights equals transformers', token for token, however the engine runs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.parity.recorded import MODELS, NUM_LONG_TOKENS, NUM_TOKENS, load
from tests.parity.reference import count_excused
from tests.parity.texts import PROMPT_LENGTHS

NUM_VARIANT_PROMPTS = 12
"""Prompts up to 513 tokens: past the window of 512, cheap enough to run in many ways."""

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]


class Reference:
    """Prompts of one real model and what transformers makes of them."""

    def __init__(self, name: str) -> None:
        recording = load(name)
        self.name = name
        self.prompts, self.short_prompts = recording.prompts, recording.short_prompts
        self.greedy, self.short_greedy = recording.outputs, recording.long_outputs


def make_llm(name: str, **options: Any) -> LLM:
    defaults: dict[str, Any] = {"dtype": "float32", "kv_memory": "1GiB", "max_model_len": 4096}
    return LLM(model=name, **(defaults | options))


def run(llm: LLM, prompts: list[list[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS],
)
def reference(request: pytest.FixtureRequest) -> Iterator[Reference]:
    yield Reference(request.param)
    gc.collect()


@pytest.mark.slow
def test_batch_equals_transformers(reference: Reference) -> None:
    with make_llm(reference.name) as llm:
        outputs = run(llm, reference.prompts)
    assert len({tuple(output) for output in outputs}) > len(PROMPT_LENGTHS) // 2, "the outputs must be varied"
    assert count_excused(outputs, reference.greedy) <= 1


@pytest.mark.long
def test_alone_equals_transformers(reference: Reference) -> None:
    with make_llm(reference.name, enable_prefix_caching=False) as llm:
        outputs = [run(llm, [prompt])[0] for prompt in reference.prompts[:NUM_VARIANT_PROMPTS]]
    assert count_excused(outputs, reference.greedy[:NUM_VARIANT_PROMPTS]) <= 1


VARIANTS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 300, "block_size": 128, "max_num_seqs": 3},
    {"max_num_batched_tokens": 37},
    {"max_num_batched_tokens": 256, "block_size": 1},
    {"block_size": 7, "enable_prefix_caching": False},
]
"""The first in every run; tests/parity/test_invariance.py runs many more on a toy."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, marks=pytest.mark.long if index else pytest.mark.slow)
        for index, options in enumerate(VARIANTS)
    ],
)
def test_every_way_equals_transformers(reference: Reference, options: dict[str, Any]) -> None:
    with make_llm(reference.name, **options) as llm:
        outputs = run(llm, reference.prompts[:NUM_VARIANT_PROMPTS])
    assert count_excused(outputs, reference.greedy[:NUM_VARIANT_PROMPTS]) <= 1


@pytest.mark.slow
def test_prefix_hits_equal_transformers(reference: Reference) -> None:
    expected = reference.greedy[:NUM_VARIANT_PROMPTS]
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in reference.prompts[:NUM_VARIANT_PROMPTS]]
    with make_llm(reference.name) as llm:
        llm.generate(prompts, sampling, use_tqdm=False)
        again = llm.generate(prompts, sampling, use_tqdm=False)
    assert sum(output.num_cached_tokens or 0 for output in again) > 2000
    assert count_excused([list(output.outputs[0].token_ids) for output in again], expected) <= 1


@pytest.mark.slow
def test_preempted_equals_transformers(reference: Reference) -> None:
    """Long outputs in a pool that holds few of them force preemption by recompute."""
    with make_llm(reference.name, max_model_len=400, block_size=2, kv_memory="40MiB") as llm:
        outputs = run(llm, reference.short_prompts * 3, NUM_LONG_TOKENS)
        num_preemptions = llm.stats().num_preemptions
    assert num_preemptions > 0
    assert count_excused(outputs, reference.short_greedy * 3) <= 1


RANKS: list[dict[str, Any]] = [
    {"pipeline_parallel_size": 2},
    {"pipeline_parallel_size": 3, "max_num_batched_tokens": 300},
    {"pipeline_parallel_size": 2, "pipeline_layers": [5, None]},
    {"pipeline_parallel_size": 2, "tensor_parallel_size": None},
]
"""None is what is left of the layers, or the least size that divides the heads."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, marks=pytest.mark.long if index else pytest.mark.slow)
        for index, options in enumerate(RANKS)
    ],
)
def test_several_ranks_equal_transformers(reference: Reference, options: dict[str, Any]) -> None:
    num_layers, num_parts = {"demo": (18, 2), "demo-smollm2": (30, 3)}[reference.name]
    options = dict(options)
    if "pipeline_layers" in options:
        options["pipeline_layers"] = [5, num_layers - 5]
    if "tensor_parallel_size" in options:
        options["tensor_parallel_size"] = num_parts
    with make_llm(reference.name, kv_memory="256MiB", **options) as llm:
        outputs = run(llm, reference.prompts[:NUM_VARIANT_PROMPTS])
    assert count_excused(outputs, reference.greedy[:NUM_VARIANT_PROMPTS]) <= 1
