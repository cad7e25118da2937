"""The search against its definition written down slowly, and its requests against what they leave in an engine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import LLM
from octavo.engine.beam_search import Beam, BeamSearch
from octavo.errors import RequestError
from octavo.messages import TokenLogprobs
from octavo.request import BeamSearchParams, FinishReason
from tests.parity.tiny import HYBRID, build_model

VOCAB = 7
Model = Callable[[tuple[int, ...]], np.ndarray]


def random_model(seed: int, *, sharpness: float = 2.0) -> Model:
    """Log probabilities after a continuation, whatever they are."""

    def logprobs(token_ids: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(zlib.crc32(bytes([seed % 256, *token_ids])))
        logits = rng.normal(size=VOCAB) * sharpness
        return logits - np.log(np.exp(logits).sum())

    return logprobs


def direct(model: Model, params: BeamSearchParams, max_tokens: int, eos: Sequence[int]) -> list[tuple[int, ...]]:
    """The definition, without an early end: every continuation of every beam at every step."""
    ends = () if params.ignore_eos else tuple(eos)
    width, beams, finished = params.beam_width, [((), 0.0)], []
    for length in range(1, max_tokens + 1):
        continued = [
            ((*token_ids, token), total + logprob)
            for token_ids, total in beams
            for token, logprob in enumerate(model(token_ids))
        ]
        continued.sort(key=lambda beam: -beam[1])
        is_end = [token_ids[-1] in ends or length == max_tokens for token_ids, _ in continued]
        finished += [
            (total / length**params.length_penalty, token_ids)
            for (token_ids, total), ends_here in zip(continued[:width], is_end, strict=False)
            if ends_here
        ]
        beams = [beam for beam, ends_here in zip(continued, is_end, strict=True) if not ends_here][:width]
    finished.sort(key=lambda scored: -scored[0])
    return [token_ids for _, token_ids in finished[:width]]


def told(logprobs: np.ndarray, count: int) -> TokenLogprobs:
    order = np.argsort(-logprobs, kind="stable")[:count].tolist()
    ids = [order[0], *order]
    return TokenLogprobs(token_ids=ids, logprobs=[float(logprobs[token]) for token in ids], rank=1)


def search(model: Model, params: BeamSearchParams, max_tokens: int, eos: Sequence[int]) -> tuple[list[Beam], int]:
    """(finished beams, steps)."""
    state = BeamSearch(params, max_tokens=max_tokens, eos_token_ids=eos)
    count, steps = state.num_wanted(VOCAB), 0
    while state.beams:
        state.advance([told(model(beam.token_ids), count) for beam in state.beams])
        steps += 1
    return state.finished(), steps


@given(
    seed=st.integers(0, 255),
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 6),
    eos=st.sampled_from([(), (0,), (2, 5)]),
    ignore_eos=st.booleans(),
    length_penalty=st.sampled_from([1.0, 0.0, 0.5, 2.0, -1.0]),
)
@settings(max_examples=120, deadline=None)
def test_the_search_is_its_definition(seed, width, max_tokens, eos, ignore_eos, length_penalty) -> None:
    params = BeamSearchParams(
        beam_width=width, max_tokens=max_tokens, ignore_eos=ignore_eos, length_penalty=length_penalty
    )
    model = random_model(seed)
    found, _ = search(model, params, max_tokens, eos)
    assert [beam.token_ids for beam in found] == direct(model, params, max_tokens, eos)
    for beam in found:
        total = sum(model(beam.token_ids[:place])[token] for place, token in enumerate(beam.token_ids))
        assert beam.logprob == pytest.approx(total)
        assert len(beam.places) == len(beam.token_ids)
        stopped = beam.finish_reason is FinishReason.STOP
        assert stopped == (beam.token_ids[-1] in eos and not ignore_eos)


def test_a_width_of_one_is_greedy() -> None:
    model = random_model(3)
    (beam,), _ = search(model, BeamSearchParams(beam_width=1, max_tokens=5), 5, ())
    token_ids: tuple[int, ...] = ()
    for _ in range(5):
        token_ids = (*token_ids, int(np.argmax(model(token_ids))))
    assert beam.token_ids == token_ids


def test_a_wide_search_finds_what_a_greedy_one_misses() -> None:
    def model(token_ids: tuple[int, ...]) -> np.ndarray:
        logprobs = np.full(VOCAB, math.log(0.01))
        logprobs[[0, 1]] = [math.log(0.5), math.log(0.45)] if not token_ids else [math.log(0.2), math.log(0.2)]
        if token_ids == (1,):
            logprobs[3] = math.log(0.9)
        return logprobs

    found, _ = search(model, BeamSearchParams(beam_width=2, max_tokens=2), 2, ())
    assert found[0].token_ids == (1, 3)


def test_the_search_ends_when_nothing_can_improve() -> None:
    def model(token_ids: tuple[int, ...]) -> np.ndarray:
        logprobs = np.full(VOCAB, math.log(1e-9))
        logprobs[0] = math.log(0.999)
        return logprobs

    params = BeamSearchParams(beam_width=1, max_tokens=1000, length_penalty=0.0)
    found, steps = search(model, params, 1000, eos=(0,))
    assert ([beam.token_ids for beam in found], steps) == ([(0,)], 1)


# -- in an engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    build_model(folder, HYBRID)
    return folder


def options(folder: Path, **more: object) -> dict[str, object]:
    return {"model": str(folder), "dtype": "float32", "kv_memory": "4MiB", **more}


@pytest.mark.slow
def test_nothing_is_computed_twice_and_nothing_stays_in_the_engine(folder: Path) -> None:
    with LLM(**options(folder, enable_prefix_caching=False)) as llm:  # type: ignore[arg-type]
        scheduled: list[int] = []
        scheduler = llm._client.core._scheduler  # type: ignore[attr-defined]
        schedule = scheduler.schedule

        def counted():
            step = schedule()
            scheduled.append(step.num_tokens)
            return step

        scheduler.schedule = counted
        prompt = list(range(3, 50))
        (output,) = llm.beam_search(
            {"prompt_token_ids": prompt}, BeamSearchParams(beam_width=4, max_tokens=9, ignore_eos=True)
        )
        assert scheduled == [47] + [4] * 8, "each beam computes its newest token, and that alone"
        assert [len(sequence.tokens) for sequence in output.sequences] == [47 + 9] * 4
        assert len({tuple(sequence.tokens) for sequence in output.sequences}) == 4
        assert llm.stats().num_used_blocks == 0
        assert scheduler.forks.kept_ids() == []


@pytest.mark.slow
def test_a_small_pool_only_makes_it_slower(folder: Path) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=12)
    prompts = [list(range(3, 3 + length)) for length in (5, 33, 64)]
    with LLM(**options(folder)) as llm:  # type: ignore[arg-type]
        wanted = llm.beam_search(prompts, params)
        alone = [llm.beam_search(prompt, params)[0] for prompt in prompts]
        one_at_a_time = llm.beam_search(prompts, params, concurrency_limit=1)
    assert [tokens(output) for output in wanted] == [tokens(output) for output in alone]
    assert [tokens(output) for output in wanted] == [tokens(output) for output in one_at_a_time]
    with LLM(**options(folder, max_model_len=80, num_blocks_override=24, max_num_batched_tokens=16)) as llm:  # type: ignore[arg-type]
        assert [tokens(output) for output in llm.beam_search(prompts, params)] == [tokens(o) for o in wanted]
        assert llm.stats().num_used_blocks == 0


def tokens(output) -> list[list[int]]:
    return [sequence.tokens for sequence in output.sequences]


@pytest.mark.slow
def test_mistakes_are_named_and_leave_nothing_behind(folder: Path) -> None:
    with LLM(**options(folder, max_model_len=64)) as llm:  # type: ignore[arg-type]
        params = BeamSearchParams(beam_width=2, max_tokens=50)
        with pytest.raises(RequestError, match=r"^prompts\[1\] \(of 2\): Token id 999"):
            llm.beam_search([[3, 4], [3, 999]], params)
        assert llm.stats().num_used_blocks == 0
        with pytest.raises(RequestError, match="LoRA"):
            llm.beam_search([3, 4], params, lora_request=object())
        (output,) = llm.beam_search([3] * 60, params)
        assert [len(sequence.tokens) for sequence in output.sequences] == [64, 64], "cut to max_model_len"
        assert output.sequences[0].text.startswith("w3 w3")
