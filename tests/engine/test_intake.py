"""From a message to a request."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.intake import build_request, check_vocabulary
from octavo.errors import RequestError
from octavo.messages import EngineCoreRequest
from octavo.request import Request, SamplingParams


def build(prompt: list[Any], eos: tuple[int, ...] = (), **sampling: Any) -> Request:
    message = EngineCoreRequest(
        request_id="x",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),
        priority=3,
        cache_salt="s",
        eos_token_ids=eos,
    )
    return build_request(message, vocab_size=100, max_model_len=50, arrival=7)


def test_everything_arrives() -> None:
    request = build([1, 2, 99], eos=(4, 5), max_tokens=8)
    assert request.token_ids.tolist() == [1, 2, 99]
    assert (request.request_id, request.priority, request.arrival, request.cache_salt) == ("x", 3, 7, "s")
    assert (request.eos_token_ids, request.max_output_tokens) == ((4, 5), 8)


def test_no_max_tokens_means_as_many_as_the_length_leaves() -> None:
    assert build([1] * 20, max_tokens=None).max_output_tokens == 30
    assert build([1] * 50, max_tokens=None).max_output_tokens == 1, (
        "the scheduler then says that the prompt is too long"
    )


def test_an_end_of_sequence_outside_the_vocabulary_can_never_come() -> None:
    assert build([1], eos=(4, 100, -1)).eos_token_ids == (4,)


@pytest.mark.parametrize("wrong", [100, -1, 2**40, 1.5, "a", None, True])
def test_a_prompt_token_outside_the_vocabulary(wrong: object) -> None:
    with pytest.raises(RequestError) as caught:
        build([1, wrong, 2])
    assert f"Token id {wrong!r} in the prompt of request 'x' is not in the vocabulary, 0 to 99." in str(caught.value)
    assert caught.value.numbers["vocab_size"] == 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", (3, 100)),
        ("logit_bias", {100: 1.0}),
        ("allowed_token_ids", (1, 200)),
        ("bad_words_token_ids", ((1, 2), (3, 100))),
    ],
)
def test_a_sampling_parameter_that_names_no_token(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"in {field} of request 'x'"):
        build([1], **{field: value})


def test_parameters_can_be_checked_before_there_is_a_request() -> None:
    check_vocabulary(SamplingParams(logprobs=100, stop_token_ids=[99]), 100)
    with pytest.raises(RequestError, match=r"^logprobs is 101, more than the vocabulary of 100 tokens\.") as caught:
        check_vocabulary(SamplingParams(logprobs=101), 100)
    assert caught.value.parameter == "logprobs"
    with pytest.raises(RequestError, match=r"^Token id 100 in stop_token_ids is not in the vocabulary") as caught:
        check_vocabulary(SamplingParams(stop_token_ids=[100]), 100)
    assert caught.value.parameter == "stop_token_ids"


def test_nothing_allowed() -> None:
    with pytest.raises(RequestError, match="allowed_token_ids of request 'x' is empty"):
        build([1], allowed_token_ids=())


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_tokens(field: str) -> None:
    build([1], **{field: 100})
    assert getattr(build([1], **{field: -1}).sampling, field) == 100, "-1 is the whole vocabulary"
    with pytest.raises(RequestError, match=f"{field} of request 'x' is 101, more than the vocabulary of 100"):
        build([1], **{field: 101})
