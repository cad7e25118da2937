"""Outputs that follow a grammar token by token, whatever the model would rather say."""

from __future__ import annotations

import json
import threading
from typing import Any

import hypothesis
import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.grammar_table import GrammarTable
from octavo.errors import OctavoError, RequestError
from octavo.messages import NewRequestData
from octavo.request import Request, SamplingParams
from octavo.structured_outputs import StructuredOutputsParams
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_table import SamplingTable
from octavo.worker.token_masks import gather_masks
from tests.engine.byte_tokenizer import EOS
from tests.engine.toy_grammars import COMPILER, TOKENIZER, admitted, allowed, sampling_step, write

VOCAB = TOKENIZER.vocab_size
SAMPLER = Sampler(vocab_size=VOCAB, num_threads=1)

names = st.sampled_from(["a", "b", "long name", "é", '"'])
leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.tuples(st.integers(-20, 20), st.integers(0, 30)).map(
        lambda bounds: {"type": "integer", "minimum": bounds[0], "maximum": bounds[0] + bounds[1]}
    ),
    st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda lengths: {"type": "string", "minLength": lengths[0], "maxLength": lengths[0] + lengths[1]}
    ),
    st.sampled_from(["^[a-c]{2,4}$", "^x+y?$", "^(ab|é)*$"]).map(lambda regex: {"type": "string", "pattern": regex}),
    st.lists(st.sampled_from(["red", "blue", 1, 2.5, None, True, {"k": [1]}]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([{"const": "x y"}, {"const": 0}, {}]),
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda parts: {"type": "array", "items": parts[0], "minItems": parts[1], "maxItems": parts[1] + parts[2]}
    )
    objects = st.tuples(st.dictionaries(names, inner, max_size=3), st.booleans()).flatmap(
        lambda parts: st.lists(st.sampled_from(sorted(parts[0]) or [""]), unique=True, max_size=3).map(
            lambda required: {
                "type": "object",
                "properties": parts[0],
                "required": [name for name in required if name in parts[0]],
                "additionalProperties": parts[1],
            }
        )
    )
    return st.one_of(arrays, objects, st.lists(inner, min_size=1, max_size=3).map(lambda either: {"anyOf": either}))


schemas = st.recursive(leaves, _nested, max_leaves=5)

_CLOSING = [EOS, *b'"]}', *b",:", *b"0123456789", *b"exyabc{["]
"""What leads out of a JSON value soonest, whatever is open."""


def _logits(random: np.random.Generator, number: int, num_free: int) -> torch.Tensor:
    """Random ones, now and then with a strong will of their own; after `num_free` tokens those that lead to the end."""
    logits = random.normal(size=VOCAB) * 3
    if number % 3 == 0:
        logits[random.choice(VOCAB, 5)] += 50
    if number >= num_free:
        logits[_CLOSING] += 1000 - 10 * np.arange(len(_CLOSING))
    return torch.from_numpy(logits[None]).float()


@hypothesis.settings(max_examples=60)
@given(schemas, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 3.0]), st.booleans())
def test_whatever_the_logits_the_text_is_a_value_that_the_schema_accepts(
    schema: dict[str, Any], seed: int, temperature: float, spaced: bool
) -> None:
    try:
        form = StructuredOutputsParams(json=schema, disable_any_whitespace=not spaced)
        COMPILER.check(form)
    except RequestError:
        hypothesis.reject()  # an enum of which two values begin alike, say: refused, which other tests look at
    table, random = GrammarTable(COMPILER), np.random.default_rng(seed)
    request = admitted(table, "r", form, temperature=temperature, seed=1)
    rows = SamplingTable(num_rows=1, seed=0)
    rows.set_row(0, NewRequestData.of(request, num_computed_tokens=0, block_ids=()))

    def choose(following: list[int], number: int) -> int:
        mask = np.zeros(8 * 40, dtype=np.uint8)
        mask[following] = 1
        masks = gather_masks({"r": np.packbits(mask, bitorder="little").tobytes()}, ["r"], VOCAB)
        (token,) = SAMPLER.sample(
            _logits(random, number, 40), rows, np.zeros(1, np.int64), np.zeros((1, 4), np.int32),
            np.array([request.num_tokens]), masks,
        ).tolist()  # fmt: skip
        assert token in following
        return int(token)

    text, ended = write(table, request, choose, 400)
    assert ended, text
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    table.shutdown()


def first(following: list[int], number: int) -> int:
    return following[0]


@pytest.mark.parametrize(("ignore_eos", "text"), [(False, b"a"), (True, b"aaaaaaa")])
def test_an_end_is_left_out_under_ignore_eos_as_long_as_the_text_can_go_on(ignore_eos: bool, text: bytes) -> None:
    table = GrammarTable(COMPILER)
    request = admitted(table, "r", StructuredOutputsParams(regex="a{1,7}"), ignore_eos=ignore_eos)
    assert write(table, request, lambda following, number: following[-1], 20) == (text, True)
    empty = admitted(table, "s", StructuredOutputsParams(choice=[""]), ignore_eos=ignore_eos)
    assert write(table, empty, first, 20) == (b"", True)


def test_requests_have_places_of_their_own_and_only_those_that_sample_have_masks() -> None:
    table, form = GrammarTable(COMPILER), StructuredOutputsParams(regex="[ab]c")
    requests = [admitted(table, name, form) for name in "xy"]
    plain = Request("plain", [1], SamplingParams(), max_output_tokens=5)
    step = sampling_step(*requests, plain)
    assert {name: allowed(mask) for name, mask in table.masked(step).token_masks.items()} == {
        "x": [97, 98], "y": [97, 98]
    }  # fmt: skip
    assert table.follow({"x": 97, "plain": 5}) == frozenset()
    requests[1].num_computed_tokens -= 1  # y computes a part of its prompt, or was preempted
    assert {name: allowed(mask) for name, mask in table.masked(step).token_masks.items()} == {"x": [99]}
    assert table.follow({"x": 99}) == {"x"}
    table.discard(["x", "y"])
    assert table.masked(step) is step
    assert table.follow({"x": 1}) == frozenset()


def test_a_token_that_may_not_follow_breaks_its_request_alone() -> None:
    table, form = GrammarTable(COMPILER), StructuredOutputsParams(regex="[ab]c")
    requests = [admitted(table, name, form) for name in "xy"]
    assert table.follow({"x": 122, "y": 97}) == frozenset()
    broken = table.take_broken()
    assert list(broken) == ["x"]
    assert "\n" not in broken["x"]
    assert table.take_broken() == {}
    assert list(table.masked(sampling_step(*requests)).token_masks) == ["y"]
    assert list(table.take_broken()) == ["x"]


class _SlowCompiler:
    """Compiles when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def matcher(self, form: StructuredOutputsParams) -> Any:
        assert self.gate.wait(10)
        if form.regex == "known":
            raise RequestError("It is known to be wrong.")
        if form.regex == "bug":
            raise ZeroDivisionError("what")
        return COMPILER.matcher(form)


def test_requests_wait_while_a_thread_compiles_and_come_back_in_order() -> None:
    compiler = _SlowCompiler()
    table = GrammarTable(compiler)  # type: ignore[arg-type]
    for name in ("fine", "known", "gone", "bug"):
        table.add(Request(name, [1], SamplingParams(), max_output_tokens=5), StructuredOutputsParams(regex=name))
    assert table.num_waiting == 4
    assert table.take_ready() == []
    assert table.take_ready(0.01) == []
    with pytest.raises(RequestError, match="in use"):
        table.check_id("fine")
    table.check_id("other")
    table.discard(["gone"])
    compiler.gate.set()
    ready = []
    while len(ready) < 3:
        ready += table.take_ready(5.0)
    assert [found.request.request_id for found in ready] == ["fine", "known", "bug"]
    assert [type(found.error) for found in ready] == [type(None), RequestError, OctavoError]
    assert "ZeroDivisionError: what" in str(ready[2].error)
    assert table.num_waiting == 0
    table.shutdown()
    table.shutdown()
