"""Usage and log probabilities as clients read them."""

from __future__ import annotations

import json

from octavo.engine.outputs import CompletionOutput, Logprob
from octavo.server.answers import LOWEST, UsageCount, chat_logprobs, completion_logprobs, frame, new_id


def _place(text: str, logprob: float, rank: int) -> Logprob:
    return Logprob(logprob=logprob, rank=rank, decoded_token=text)


def test_a_token_that_cannot_come_has_a_number_that_json_has() -> None:
    entry = {1: _place("a", float("-inf"), 900), 2: _place("é", -0.5, 1)}
    document = completion_logprobs(["a"], [entry], num_top=1, offset=4)
    assert document == {
        "tokens": ["a"],
        "token_logprobs": [LOWEST],
        "top_logprobs": [{"a": LOWEST, "é": -0.5}],
        "text_offset": [4],
    }
    (token,) = chat_logprobs([entry], num_top=1)["content"]
    assert (token["token"], token["logprob"]) == ("a", LOWEST)
    assert token["top_logprobs"] == [{"token": "é", "logprob": -0.5, "bytes": [195, 169]}]


def test_tokens_with_one_text_keep_the_better_one_of_the_chosen_first() -> None:
    entry = {1: _place("a", -2.0, 2), 2: _place("a", -0.5, 1)}
    assert completion_logprobs(["a"], [entry], num_top=2, offset=0)["top_logprobs"] == [{"a": -2.0}]


def test_usage_counts_new_tokens_and_a_prompts_hits_once() -> None:
    usage = UsageCount()
    for _ in range(2):
        usage.add_prompt(10)
    piece = CompletionOutput(index=0, text="", token_ids=[1, 2], num_cached_tokens=8)
    other = CompletionOutput(index=1, text="", token_ids=[1], num_cached_tokens=9)
    usage.add(0, [piece, other])
    usage.add(0, [piece])
    usage.add(1, [piece])
    assert usage.document() == {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


def test_a_frame_is_one_event() -> None:
    assert json.loads(frame({"text": "\n\n"}).removeprefix(b"data: ")) == {"text": "\n\n"}
    assert frame({"text": "\n\n"}).count(b"\n") == 2
    assert new_id("x") != new_id("x")
