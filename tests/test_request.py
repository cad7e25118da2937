"""SamplingParams refuses what cannot be sampled; Request keeps its tokens."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import RequestError
from octavo.request import FinishReason, Request, SamplingParams


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
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("stop", ("a", "")),
        ("stop", ""),
        ("logit_bias", {3: float("nan")}),
        ("logit_bias", {3: float("inf")}),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{field} is .* It must be "):
        SamplingParams(**{field: value})


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


def test_finish_reasons_read_as_text() -> None:
    assert FinishReason.LENGTH == "length"
    assert f"{FinishReason.STOP}" == "stop"
