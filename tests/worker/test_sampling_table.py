"""Sampling parameters as rows, keys, and the rules that name single tokens."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.messages import NewRequestData
from octavo.request import SamplingParams
from octavo.worker.sampling_table import RowRules, SamplingTable, position_keys, request_key


def data_of(request_id: str = "r", *, num_prompt: int = 2, **sampling: object) -> NewRequestData:
    return NewRequestData(
        request_id=request_id,
        token_ids=[1, 2, 3],
        num_prompt_tokens=num_prompt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        eos_token_ids=(7,),
        num_computed_tokens=0,
        block_ids=(),
    )


@pytest.mark.parametrize(
    ("sampling", "is_plain"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.1, "min_p": 0.5, "seed": 1, "logprobs": 2}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, False),
        ({"temperature": 0.0, "presence_penalty": 0.1}, False),
        ({"temperature": 0.0, "frequency_penalty": 0.1}, False),
        ({"temperature": 0.0, "logit_bias": {3: 1.0}}, False),
        ({"temperature": 0.0, "allowed_token_ids": (1,)}, False),
        ({"temperature": 0.0, "bad_words_token_ids": ((1,),)}, False),
        ({"temperature": 0.0, "min_tokens": 1}, False),
        ({"temperature": 0.0, "logit_bias": {}, "bad_words_token_ids": ((),)}, True),
    ],
)
def test_a_row_is_plain_when_its_token_is_the_arg_max_as_it_is(sampling: dict[str, object], is_plain: bool) -> None:
    table = SamplingTable(num_rows=1, seed=0)
    table.set_row(0, data_of(**sampling))
    assert table.is_plain[0] == is_plain


def test_a_row_reused_keeps_nothing_of_its_last_request() -> None:
    table = SamplingTable(num_rows=2, seed=0)
    table.set_row(0, data_of(temperature=0.5, top_k=3, logprobs=4, min_tokens=2, repetition_penalty=2.0))
    table.set_row(0, data_of(temperature=0.0))
    assert table.is_plain[0]
    assert table.rules[0] is None
    assert table.num_logprobs[0] == -1
    assert table.options["top_k"][0] == 0
    assert table.options["repetition"][0] == 1.0


def test_a_moved_row_is_what_it_was() -> None:
    table = SamplingTable(num_rows=2, seed=0)
    table.set_row(1, data_of(temperature=0.5, top_k=3, logprobs=4, min_tokens=2))
    before, rules = table.options[1].copy(), table.rules[1]
    table.move_row(1, 0)
    assert table.options[0] == before
    assert table.rules == [rules, None]
    assert (table.is_plain[0], table.num_logprobs[0]) == (False, 4)


def test_step_options_say_where_each_request_stands() -> None:
    table = SamplingTable(num_rows=3, seed=0)
    for row in range(3):
        table.set_row(row, data_of(str(row), num_prompt=row + 1, temperature=1.0, seed=row))
    options = table.step_options(np.array([2, 0]), np.array([5, 9]))
    assert options["row"].tolist() == [2, 0]
    assert options["num_tokens"].tolist() == [5, 9]
    expected = position_keys(np.array([request_key("2", 2, 0), request_key("0", 0, 0)], np.uint64), np.array([2, 8]))
    assert options["key"].tolist() == expected.tolist()
    assert table.options["row"].tolist() == [0, 0, 0], "the table itself is not changed"


def test_keys_come_from_the_seed_or_else_from_the_engines_seed_and_the_id() -> None:
    assert request_key("a", 5, 0) == request_key("b", 5, 9)
    assert request_key("a", 5, 0) != request_key("a", 6, 0)
    assert request_key("a", None, 0) == request_key("a", None, 0)
    assert len({request_key(name, None, seed) for name in "ab" for seed in (0, 1)}) == 4
    assert len({request_key("a", seed, 0) for seed in (-1, 0, 1, 2**63, 2**64 + 1)}) == 5, "any whole number is a seed"


def test_keys_differ_from_place_to_place_in_about_half_their_bits() -> None:
    keys = position_keys(np.full(1000, request_key("a", 1, 0), np.uint64), np.arange(1000))
    assert len(set(keys.tolist())) == 1000
    flips = [(int(a) ^ int(b)).bit_count() for a, b in zip(keys[1:], keys[:-1], strict=True)]
    assert 30 < np.mean(flips) < 34


def test_bans_of_stop_tokens_end_with_min_tokens() -> None:
    rules = RowRules(data_of(min_tokens=2, stop_token_ids=(9,)))
    assert sorted(rules.banned(np.array([5], np.int32))) == [7, 9]
    assert rules.banned(np.array([5, 5], np.int32)) == []


def test_a_bad_word_is_banned_when_the_output_ends_with_its_head() -> None:
    rules = RowRules(data_of(bad_words_token_ids=((4,), (5, 6), (5, 5, 8))))
    assert rules.banned(np.array([], np.int32)) == [4]
    assert rules.banned(np.array([5], np.int32)) == [4, 6]
    assert rules.banned(np.array([5, 5], np.int32)) == [4, 6, 8]
    assert rules.banned(np.array([5, 9], np.int32)) == [4]
