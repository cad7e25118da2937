"""SamplingParams refuses what cannot be sampled; Request keeps its tokens."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.errors import RequestError
from octavo.request import BeamSearchParams, FinishReason, Request, SamplingParams, int32_array


def test_defaults_are_those_that_vllm_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.stop) == (16, 0, None, ())
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("stop", ("a", "")),
        ("stop", ""),
        ("bad_words", ("a", "")),
        ("temperature", 10**400),
        ("logit_bias", {3: float("nan")}),
        ("logit_bias", {3: float("inf")}),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is .* It must be "):
        SamplingParams(**{field: value})


WHOLE, NUMBER, TEXTS, IDS = "a whole number", "a number", "a text or a list of texts", "a list of token ids"
NOT_WHOLE = ("9", 1.5, 2.0, float("nan"), True, b"1", [1], np.float32(1), np.bool_(1))
NOT_NUMBER = ("hot", None, True, b"1", [0.5], 1j, np.bool_(1))


@pytest.mark.parametrize(
    ("field", "kind", "values"),
    [
        ("n", WHOLE, (None, *NOT_WHOLE)),
        ("top_k", WHOLE, (None, *NOT_WHOLE)),
        ("min_tokens", WHOLE, (None, *NOT_WHOLE)),
        *((field, WHOLE, NOT_WHOLE) for field in ("seed", "max_tokens", "logprobs", "prompt_logprobs")),
        *((field, NUMBER, NOT_NUMBER) for field in ("temperature", "top_p", "min_p")),
        *((f"{kind}_penalty", NUMBER, NOT_NUMBER) for kind in ("presence", "frequency", "repetition")),
        *((field, TEXTS, (5, b"x", [b"x"], ["a", 5], {"a": 1}, [None], True)) for field in ("stop", "bad_words")),
        *(
            (field, IDS, ("ab", 5, [1.5], ["a"], [True], [None], b"ab", {1: 2}))
            for field in ("stop_token_ids", "allowed_token_ids")
        ),
        ("bad_words_token_ids", "a list of lists of token ids", ("ab", 5, [1], ["a"], [[1.5]], [[-1]], [None])),
        (
            "logit_bias",
            "a mapping of token ids to numbers",
            ({"a": 1}, {1: "x"}, {True: 1.0}, {1: None}, [(1, 2.0)]),
        ),
        *(
            (field, "True or False", ("no", 1, None))
            for field in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
        ),
        ("spaces_between_special_tokens", "True or False", ("no", 1, None)),
        ("skip_reading_prefix_cache", "True or False", ("no", 1)),
        ("truncate_prompt_tokens", WHOLE, NOT_WHOLE),
        ("extra_args", "a mapping of names to values", ([1], "a", {1: 2})),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, kind: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(RequestError, match=rf"^{field} is .*\. It must be {kind}"):
            SamplingParams(**{field: value})


def test_the_message_quotes_a_long_value_shortly() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop=["x" * 10_000, 5])  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("n", 1, 1024),
        ("seed", -(2**63), 2**64 - 1),
        ("top_k", -1, 2**31 - 1),
        ("logprobs", -1, 2**20),
        ("prompt_logprobs", -1, 2**20),
        ("max_tokens", 1, 2**31 - 1),
    ],
)
def test_whole_numbers_have_bounds(field: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(SamplingParams(**{field: value}), field) == value
    for value in (least - 1, most + 1, 10**400):
        with pytest.raises(RequestError, match=rf"^{field} is "):
            SamplingParams(**{field: value})


def test_the_seeds_of_all_completions_have_64_bits() -> None:
    SamplingParams(seed=2**64 - 2, n=2)
    with pytest.raises(RequestError, match=r"^seed is "):
        SamplingParams(seed=2**64 - 2, n=3)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token_id", [-1, 2**31])
def test_a_token_id_that_no_vocabulary_has_is_refused(field: str, token_id: int) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is .*{token_id}"):
        SamplingParams(**{field: [3, token_id]})
    with pytest.raises(RequestError, match=r"^logit_bias is "):
        SamplingParams(logit_bias={token_id: 1.0})
    with pytest.raises(RequestError, match=r"^bad_words_token_ids is "):
        SamplingParams(bad_words_token_ids=((token_id,),))


def test_numbers_of_numpy_become_plain_ones() -> None:
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        top_p=1,
        seed=np.uint64(2**64 - 2),
        stop_token_ids=np.array([4, 5]),
        allowed_token_ids={6},
        bad_words_token_ids=[np.array([1, 2])],
        logit_bias={np.int32(3): np.float64(1.5), 4: 2},
    )
    assert (params.n, params.temperature, params.top_p, params.stop_token_ids) == (2, 0.5, 1.0, (4, 5))
    assert (params.seed, params.allowed_token_ids) == (2**64 - 2, (6,))
    assert (params.bad_words_token_ids, params.logit_bias) == (((1, 2),), {3: 1.5, 4: 2.0})
    bias = params.logit_bias or {}
    numbers = [
        params.n,
        params.seed,
        *params.stop_token_ids,
        *params.bad_words_token_ids[0],
        *bias,
    ]
    assert {type(number) for number in numbers} == {int}
    assert {type(number) for number in [params.temperature, params.top_p, *bias.values()]} == {float}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_text_or_a_list_is_taken_where_a_tuple_is_declared() -> None:
    params = SamplingParams(stop="END", stop_token_ids=[1, 2], bad_words=["x"], allowed_token_ids=[3])  # type: ignore[arg-type]
    assert params.stop == ("END",)
    assert params.stop_token_ids == (1, 2)
    assert params.bad_words == ("x",)
    assert params.allowed_token_ids == (3,)
    assert SamplingParams(stop=None, stop_token_ids=None).stop == ()  # type: ignore[arg-type]
    assert hash(params) == hash(msgspec.structs.replace(params))


def test_params_survive_msgpack() -> None:
    params = SamplingParams(stop=("a", "bc"), logit_bias={5: -1.0}, bad_words_token_ids=((1, 2), (3,)), seed=7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_request_counts_its_output() -> None:
    request = Request("r", [5, 6, 7], SamplingParams(), max_output_tokens=4)
    request.append_token(8)
    assert (request.num_prompt_tokens, request.num_tokens, request.num_output_tokens) == (3, 4, 1)
    assert request.output_token_ids == [8]
    assert not request.is_finished


def test_a_request_with_output_has_reported_its_prompt() -> None:
    request = Request("r", [5, 6, 7], SamplingParams(prompt_logprobs=1), max_output_tokens=4)
    assert not request.may_skip_prefix
    request.append_token(8)
    assert request.may_skip_prefix
    assert Request("r", [5], SamplingParams(), max_output_tokens=4).may_skip_prefix
    reader = Request("r", [5], SamplingParams(skip_reading_prefix_cache=True), max_output_tokens=4)
    assert not reader.may_skip_prefix


def test_an_unknown_field_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RequestError, match=r"^SamplingParams has no field 'topp'\. Did you mean top_p"):
        SamplingParams(topp=0.5)  # type: ignore[call-arg]


VLLM_SAMPLING = """
n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p seed stop
stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start
logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
output_kind stream_interval skip_clone output_text_buffer_length structured_outputs logit_bias allowed_token_ids
extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection routed_experts_prompt_start
trace_decode_token_ids
"""
VLLM_BEAMS = """
beam_width max_tokens ignore_eos temperature length_penalty include_stop_str_in_output structured_outputs
skip_special_tokens watermarking
"""
"""Public fields of vLLM 0.32.0."""


@pytest.mark.parametrize(("ours", "names"), [(SamplingParams, VLLM_SAMPLING), (BeamSearchParams, VLLM_BEAMS)])
def test_every_field_that_vllm_users_know_is_one_or_is_refused_by_name(ours: Any, names: str) -> None:
    known = {*ours.__struct_fields__, *ours.REFUSED}
    assert set(names.split()) <= known
    assert not set(ours.__struct_fields__) & set(ours.REFUSED)


@pytest.mark.parametrize("field", BeamSearchParams.REFUSED)
def test_a_search_refuses_fields_of_other_engines_by_name(field: str) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is not supported\. .+\.$"):
        BeamSearchParams(beam_width=2, max_tokens=3, **{field: 2})
    assert BeamSearchParams(beam_width=2, max_tokens=3, **{field: None}).beam_width == 2


@pytest.mark.parametrize("field", SamplingParams.REFUSED)
def test_a_field_of_other_engines_is_refused_by_name_unless_it_asks_for_nothing(field: str) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is not supported\. .+\.$") as caught:
        SamplingParams(**{field: 2})
    assert caught.value.parameter == field
    assert SamplingParams(**{field: None}) == SamplingParams()


def test_minus_one_is_no_seed() -> None:
    assert SamplingParams(seed=-1).seed is None


def test_the_error_knows_the_field_and_can_call_it_otherwise() -> None:
    for wrong in ({"top_p": 2.0}, {"top_p": "x"}):
        with pytest.raises(RequestError) as caught:
            SamplingParams(**wrong)  # type: ignore[arg-type]
        assert caught.value.parameter == "top_p"
        assert str(caught.value.naming("--top-p")).startswith("--top-p is ")
    assert str(RequestError("a fact", remedy="Mend it.").naming("--x")) == "a fact Mend it."


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 257),
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", 0.5),
        ("length_penalty", float("nan")),
    ],
)
def test_impossible_searches_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is .* It must be "):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 5, field: value})
    with pytest.raises(RequestError, match=r"^BeamSearchParams lacks max_tokens\."):
        BeamSearchParams(beam_width=2)  # type: ignore[call-arg]


def test_finish_reasons_read_as_text() -> None:
    assert FinishReason.LENGTH == "length"
    assert f"{FinishReason.STOP}" == "stop"


@pytest.mark.parametrize("numbers", [[], [0], [1, 2**31 - 1, 0], [5, -1, 2], [-(2**31)]])
def test_token_ids_become_int32(numbers: list[int]) -> None:
    assert int32_array(numbers) == array("i", numbers)
    assert int32_array(numbers).typecode == "i"


@pytest.mark.parametrize("number", [2**31, 2**32 - 1, 2**32, -(2**31) - 1])
def test_what_is_no_int32_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        int32_array([1, number, 2])
