"""Sampled tokens against the distribution that float64 computes directly, for each parameter and all of them together.

Two tests. One is exact: a draw is the arg max of log p - log E, where p is the direct distribution and E the waiting
time of the token, which is a hash; so a single wrong probability would show in the very token. The other is
statistical, and says that those waiting times are exponential: Pearson's chi-square over bins of at least 10 expected
draws. Under the right distribution one comparison fails with probability `FALSE_ALARM`, all of them together below
1e-6; draws come from fixed seeds, so what has passed passes again.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from octavo.messages import NewRequestData
from octavo.request import SamplingParams
from octavo.worker import sampling_table
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_table import SamplingTable, position_keys, request_key
from tests.worker.direct_sampling import distribution, edited_logits

VOCAB = 600
FALSE_ALARM = 1e-8
"""Of one chi-square comparison; there are fewer than 100."""
NUM_DRAWS = 4000
PROMPT, OUTPUT, EOS = [3, 4, 4, 599], [5, 7, 5], (1, 2)
SAMPLER = Sampler(vocab_size=VOCAB, num_threads=1)

PARAMETERS = {
    "plain": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.4),
    "hot": SamplingParams(temperature=2.5),
    "top_p": SamplingParams(top_p=0.7),
    "top_k": SamplingParams(top_k=9),
    "min_p": SamplingParams(min_p=0.05),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=-1.2),
    "repetition": SamplingParams(repetition_penalty=1.6),
    "bias": SamplingParams(logit_bias={3: 4.0, 5: -3.0, 599: 5.0}),
    "allowed": SamplingParams(allowed_token_ids=(1, 5, 9, 255, 256, 599)),
    "bad words": SamplingParams(bad_words_token_ids=((5,), (7, 5, 9), (9, 8)), logit_bias={9: 5.0, 8: 4.0}),
    "min tokens": SamplingParams(min_tokens=9, stop_token_ids=(4,), logit_bias={1: 6.0, 4: 6.0}),
    "all": SamplingParams(
        temperature=1.3,
        top_p=0.95,
        top_k=60,
        min_p=0.003,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={3: 4.0, 9: 2.0},
        bad_words_token_ids=((5,),),
        min_tokens=5,
        stop_token_ids=(6,),
    ),
}


def shapes() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    normal = torch.randn(VOCAB, generator=generator)
    peaked = normal.clone()
    peaked[5] = 9.0
    holes = normal * 3
    holes[::2] = -torch.inf
    return {
        "normal": normal * 2,
        "flat": torch.zeros(VOCAB),
        "peaked": peaked,
        "ties": (normal * 2).round(),
        "holes": holes,
        "bfloat16": (normal * 4).bfloat16(),
    }


SHAPES = shapes()


def draw(logits: torch.Tensor, sampling: SamplingParams, keys: np.ndarray) -> np.ndarray:
    """The tokens of requests that differ in their keys alone."""
    tokens = PROMPT + OUTPUT
    count = len(keys)
    table = SamplingTable(num_rows=count, seed=0)
    data = NewRequestData(
        request_id="r",
        token_ids=tokens,
        num_prompt_tokens=len(PROMPT),
        sampling=sampling,
        eos_token_ids=EOS,
        num_computed_tokens=0,
        block_ids=(),
    )
    table.set_row(0, data)
    table.options[:] = table.options[0]
    table.options["key"] = keys
    table.is_plain[:] = table.is_plain[0]
    table.rules = [table.rules[0]] * count
    history = np.tile(np.array(tokens, dtype=np.int32), (count, 1))
    rows = np.arange(count)
    return SAMPLER.sample(logits.expand(count, -1), table, rows, history, np.full(count, len(tokens)))


def wanted(logits: torch.Tensor, sampling: SamplingParams) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        edited = edited_logits(logits.double().numpy(), sampling, PROMPT, OUTPUT, eos=EOS)
        return distribution(edited, sampling)


def keys_of(count: int) -> np.ndarray:
    return np.array([request_key(f"request {number}", None, 4) for number in range(count)], dtype=np.uint64)


def waiting_times(keys: np.ndarray) -> np.ndarray:
    """[keys, vocab] float64: E of each token at this place of the output, by the definition of the hash."""
    mixed = position_keys(keys, np.full(len(keys), len(OUTPUT)))
    low, high = (mixed & np.uint64(0xFFFFFFFF)).astype(np.uint32), (mixed >> np.uint64(32)).astype(np.uint32)

    def hashed(key_1: np.ndarray, key_2: np.ndarray) -> np.ndarray:
        x = np.arange(VOCAB, dtype=np.uint32)[None, :] ^ key_1[:, None]
        x ^= x >> np.uint32(16)
        x = (x * np.uint32(0x7FEB352D)) ^ key_2[:, None]
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))

    upper, lower = hashed(low, high), hashed(~high, low)
    return -np.log1p(-(upper + (lower + 0.5) / 2.0**32) / 2.0**32)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_draw_is_the_arg_max_of_the_direct_distribution(shape: str) -> None:
    keys = keys_of(150)
    times = waiting_times(keys)
    for name, sampling in PARAMETERS.items():
        with np.errstate(divide="ignore"):
            scores = np.log(wanted(SHAPES[shape], sampling)) - np.log(times)
        found = draw(SHAPES[shape], sampling, keys)
        short = scores.max(axis=1) - scores[np.arange(len(keys)), found]
        assert short.max() < 1e-4, f"{name}: another token was drawn"
        assert (found == scores.argmax(axis=1)).mean() > 0.97


def tail(seen: np.ndarray, probabilities: np.ndarray) -> float:
    """How probable a Pearson statistic as great as that of `seen` is."""
    expected = probabilities * seen.sum()
    large = expected >= 10
    counts = np.append(seen[large], seen[~large].sum())
    means = np.append(expected[large], expected[~large].sum())
    counts, means = counts[means > 0], means[means > 0]
    degrees = len(counts) - 1
    if degrees < 1:
        return 1.0
    statistic = float(((counts - means) ** 2 / means).sum())
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), torch.tensor(statistic / 2).double()))


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_draws_have_the_distribution(name: str) -> None:
    sampling = PARAMETERS[name]
    for shape, logits in SHAPES.items():
        expected = wanted(logits, sampling)
        seen = np.bincount(draw(logits, sampling, keys_of(NUM_DRAWS)), minlength=VOCAB)
        assert seen[expected == 0].sum() == 0, f"{shape}: a token that is left out was drawn"
        assert tail(seen, expected) > FALSE_ALARM, shape


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ({"temperature": 1.0}, {"temperature": 1.15}),
        ({"top_p": 0.7}, {"top_p": 0.8}),
        ({"top_k": 9}, {"top_k": 12}),
        ({"presence_penalty": 1.5}, {}),
        ({"frequency_penalty": 0.9}, {"presence_penalty": 0.9, "logit_bias": {7: 0.5}}),
        ({"repetition_penalty": 1.6}, {}),
        ({"min_p": 0.05}, {"min_p": 0.08}),
    ],
)
def test_a_wrong_distribution_is_noticed(asked: dict[str, Any], done: dict[str, Any]) -> None:
    logits = SHAPES["normal"].clone()
    logits[[3, 5, 7]] = 6.0
    seen = np.bincount(draw(logits, SamplingParams(**done), keys_of(NUM_DRAWS)), minlength=VOCAB)
    expected = wanted(logits, SamplingParams(**asked))
    assert seen[expected == 0].sum() > 0 or tail(seen, expected) < FALSE_ALARM


def test_successive_places_are_drawn_independently() -> None:
    """Pairs of draws at neighbouring places of the output, over many requests, from four equal tokens."""
    logits = torch.full((VOCAB,), -torch.inf)
    logits[[0, 255, 256, 599]] = 0.0
    plain = SamplingParams()
    found = []
    for place in range(2):
        keys = keys_of(3000)
        moved = keys + np.uint64(place) * sampling_table._GOLDEN
        found.append(np.searchsorted([0, 255, 256, 599], draw(logits, plain, moved)))
    assert tail(np.bincount(found[0] * 4 + found[1], minlength=16), np.full(16, 1 / 16)) > FALSE_ALARM


def test_greedy_takes_the_most_probable_token_of_each_rule() -> None:
    for sampling in PARAMETERS.values():
        greedy = msgspec.structs.replace(sampling, temperature=0.0)
        for shape, logits in SHAPES.items():
            edited = edited_logits(logits.double().numpy(), greedy, PROMPT, OUTPUT, eos=EOS)
            (found,) = draw(logits, greedy, keys_of(1))
            assert edited[found] == pytest.approx(edited.max(), abs=1e-5), shape
