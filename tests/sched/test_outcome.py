"""When a request ends, and what is told of it."""

from __future__ import annotations

import pytest

from octavo.messages import ModelRunnerOutput, TokenLogprobs
from octavo.request import FinishReason, SamplingParams
from octavo.sched.outcome import find_finish, news_of
from octavo.sched.queue import Entry
from tests.sched.harness import make_request

EOS = (7, 8)


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([1], {}, (None, None)),
        ([7], {}, (FinishReason.STOP, None)),
        ([1, 8], {}, (FinishReason.STOP, None)),
        ([7], {"ignore_eos": True}, (None, None)),
        ([1, 5], {"stop_token_ids": (4, 5)}, (FinishReason.STOP, 5)),
        ([5], {"stop_token_ids": (5,), "ignore_eos": True}, (FinishReason.STOP, 5)),
        ([7], {"stop_token_ids": (7,)}, (FinishReason.STOP, None)),
        ([7], {"stop_token_ids": (7,), "ignore_eos": True}, (FinishReason.STOP, 7)),
        ([7], {"min_tokens": 2}, (None, None)),
        ([1, 7], {"min_tokens": 2}, (FinishReason.STOP, None)),
        ([5], {"min_tokens": 2, "stop_token_ids": (5,)}, (None, None)),
        ([1, 2, 3, 4], {}, (FinishReason.LENGTH, None)),
        ([1, 2, 3, 7], {}, (FinishReason.STOP, None)),
        ([1, 2, 3, 7], {"min_tokens": 4, "ignore_eos": True}, (FinishReason.LENGTH, None)),
    ],
)
def test_how_a_request_ends(output: list[int], sampling: dict, expected: tuple) -> None:
    request = make_request("a", [7, 5], max_tokens=4, eos=EOS, sampling=SamplingParams(max_tokens=4, **sampling))
    for token_id in output:
        request.append_token(token_id)
    assert find_finish(request, output[-1]) == expected


def test_the_length_ends_a_request_that_has_not_its_least_tokens() -> None:
    request = make_request("a", [1], max_tokens=1, sampling=SamplingParams(max_tokens=None, min_tokens=5))
    request.append_token(3)
    assert find_finish(request, 3) == (FinishReason.LENGTH, None)


def places(first: int, stop: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_ids=[place], logprobs=[0.0], rank=1) for place in range(first, stop)]


def test_prompt_logprobs_are_told_once_although_a_resumed_request_computes_them_again() -> None:
    entry = Entry(make_request("a", range(10)), (0, 0, 0, 0))
    told: list[int] = []
    for start, stop in [(0, 4), (4, 7), (0, 5), (5, 10)]:
        computed = ModelRunnerOutput(sampled={}, prompt_logprobs={"a": places(start + 1, min(stop + 1, 10))})
        told += [place.token_ids[0] for place in news_of(entry, computed, None, start).prompt_logprobs]
    assert told == list(range(1, 10))


def test_news_of_a_sampled_token() -> None:
    request = make_request("a", range(3))
    request.num_cached_tokens = 2
    logprobs = TokenLogprobs(token_ids=[9], logprobs=[-0.5], rank=1)
    news = news_of(Entry(request, (0, 0, 0, 0)), ModelRunnerOutput(sampled={"a": 9}, logprobs={"a": logprobs}), 9, 2)
    assert (news.request_id, news.new_token_ids, news.num_cached_tokens) == ("a", [9], 2)
    assert news.logprobs == (logprobs,)
    assert news.prompt_logprobs == ()
