"""Sampled tokens of a seeded request, in float32, are the same whatever runs beside it and however it is run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import LLM, SamplingParams
from tests.parity.tiny import HYBRID, VOCAB_SIZE, build_model

pytestmark = pytest.mark.timeout(1800)

LENGTHS = (1, 7, 12, 25, 40, 64, 90)

PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"top_p": 0.8, "n": 3},
    {"top_k": 20, "temperature": 1.4, "min_tokens": 5, "stop_token_ids": tuple(range(3, 40))},
    {"min_p": 0.02, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {9: 5.0, 10: 5.0, 11: -5.0}, "bad_words_token_ids": ((9, 10), (10,))},
    {"allowed_token_ids": tuple(range(50, 90)), "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_p": 0.95, "top_k": 50, "logprobs": 2, "prompt_logprobs": 1},
)


class Asked:
    """Requests of mixed parameters, and what each came to alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        build_model(folder, HYBRID, spread=0.15)
        rng = random.Random(3)
        trunk = [rng.randrange(3, VOCAB_SIZE) for _ in range(max(LENGTHS))]
        self.requests = [
            (
                trunk[: rng.choice(LENGTHS)] + [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice((0, 3)))],
                SamplingParams(**({"max_tokens": 14, "seed": 100 + number} | PARAMETERS[number % len(PARAMETERS)])),
            )
            for number in range(16)
        ]
        with self.llm(enable_prefix_caching=False) as llm:
            self.alone = [answers(llm, [request])[0] for request in self.requests]

    def llm(self, **options: Any) -> LLM:
        return LLM(str(self.folder), dtype="float32", **({"kv_memory": "4MiB"} | options))


def answers(llm: LLM, requests: list[tuple[list[int], SamplingParams]]) -> list[list[list[int]]]:
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    outputs = llm.generate(prompts, [sampling for _, sampling in requests], use_tqdm=False)
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("sampled"))


@pytest.mark.slow
def test_the_answers_are_varied(asked: Asked) -> None:
    assert len({tuple(tokens) for answer in asked.alone for tokens in answer}) == 16 + 2 * 2
    assert sum(len(set(tokens)) > 7 for answer in asked.alone for tokens in answer) > 12
    first, second, third = asked.alone[2]
    assert len({tuple(tokens) for tokens in (first, second, third)}) == 3, "each completion has a stream of its own"


SCHEDULES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 3),
        "max_num_batched_tokens": st.sampled_from([1, 4, 9, 30, 2048]),
        "max_num_seqs": st.integers(1, 20),
        "block_size": st.sampled_from([1, 4, 5, 16, 27]),
        "enable_prefix_caching": st.booleans(),
    }
)


def check(asked: Asked, schedule: dict[str, Any], order: list[int], extra_blocks: int) -> None:
    options = {"max_model_len": 112, **schedule}
    with asked.llm(**options) as probe:
        smallest = 1 + sum(probe.plan.figures.blocks_per_request)
    with asked.llm(**options, num_blocks_override=smallest + extra_blocks) as llm:
        assert answers(llm, [asked.requests[index] for index in order]) == [asked.alone[index] for index in order]


@pytest.mark.slow
@settings(max_examples=3, deadline=None, derandomize=True)
@given(schedule=SCHEDULES, order=st.permutations(range(16)), extra_blocks=st.integers(0, 40))
def test_any_schedule(asked: Asked, schedule: dict[str, Any], order: list[int], extra_blocks: int) -> None:
    """Any order and company, budget, block size and pool, down to one that holds a single request at a time."""
    check(asked, schedule, order, extra_blocks)


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(schedule=SCHEDULES, order=st.permutations(range(16)), extra_blocks=st.integers(0, 40))
def test_many_schedules(asked: Asked, schedule: dict[str, Any], order: list[int], extra_blocks: int) -> None:
    check(asked, schedule, order, extra_blocks)


@pytest.mark.slow
def test_preempted_requests_draw_the_same_again(asked: Asked) -> None:
    options: dict[str, Any] = {"max_model_len": 112, "block_size": 2, "max_num_batched_tokens": 16}
    with asked.llm(**options) as probe:
        smallest = 1 + sum(probe.plan.figures.blocks_per_request)
    with asked.llm(**options, num_blocks_override=smallest + 8) as llm:
        assert answers(llm, asked.requests) == asked.alone
        assert llm.stats().num_preemptions > 0


@pytest.mark.slow
def test_the_completions_of_a_seeded_prompt_are_those_of_the_seeds_that_follow(asked: Asked) -> None:
    prompt, sampling = asked.requests[2]
    with asked.llm() as llm:
        single = [
            (prompt, SamplingParams(max_tokens=14, top_p=0.8, seed=(sampling.seed or 0) + index)) for index in range(3)
        ]
        assert [answer[0] for answer in answers(llm, single)] == asked.alone[2]


@pytest.mark.slow
def test_prompt_log_probabilities_do_not_depend_on_chunks_or_on_what_is_cached(asked: Asked) -> None:
    """They need the whole prompt computed, so a prefix hit is not taken; others find its blocks all the same."""
    prompt = asked.requests[7][0] + list(range(3, 60))
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    found = []
    for options in ({}, {"max_num_batched_tokens": 7}, {"enable_prefix_caching": False}):
        with asked.llm(**options) as llm:
            for _ in range(2):
                (output,) = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
                assert output.num_cached_tokens == 0
                found.append(output.prompt_logprobs)
            (other,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=1), use_tqdm=False)
            assert (other.num_cached_tokens > 0) == options.get("enable_prefix_caching", True)
    first = found[0]
    assert first is not None
    assert first[0] is None
    for places in found[1:]:
        for one, two in zip(first[1:], places[1:], strict=True):
            assert list(one) == list(two)
            for token_id, entry in one.items():
                assert (entry.rank, entry.decoded_token) == (two[token_id].rank, two[token_id].decoded_token)
                assert entry.logprob == pytest.approx(two[token_id].logprob, abs=1e-4)
