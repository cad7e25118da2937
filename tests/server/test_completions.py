"""POST /v1/completions, through HTTP: the answer is the prompt backwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.running import RunningServer


def events(text: str) -> list[Any]:
    """The documents of a stream, without the mark of its end, which must be there."""
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def test_a_text_is_completed_and_counted(server: RunningServer) -> None:
    document = server.post("/v1/completions", model="fake", prompt="abc", max_tokens=9).json()
    assert document["object"] == "text_completion"
    assert document["choices"] == [
        {"index": 0, "text": "cba", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert document["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert document["id"].startswith("cmpl-")


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [("ab", ["ba"]), (["ab", "cd"], ["ba", "dc"]), ([97, 98], ["ba"]), ([[97, 98], [99]], ["ba", "c"])],
)
def test_prompts_come_in_every_form(server: RunningServer, prompt: Any, texts: list[str]) -> None:
    for stream in (False, True):
        answer = server.post("/v1/completions", prompt=prompt, stream=stream)
        got = [""] * len(texts)
        for document in events(answer.text) if stream else [answer.json()]:
            for choice in document["choices"]:
                got[choice["index"]] += choice["text"]
        assert got == texts


def test_n_completions_of_several_prompts_are_numbered(server: RunningServer) -> None:
    document = server.post("/v1/completions", prompt=["ab", "cd"], n=2).json()
    choices = [(choice["index"], choice["text"]) for choice in document["choices"]]
    assert choices == [(0, "ba"), (1, "ba"), (2, "dc"), (3, "dc")]
    assert document["usage"]["completion_tokens"] == 12


def test_a_stream_has_the_usage_where_it_is_asked_for(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": "abcdef", "max_tokens": 3, "stream": True}
    plain = events(server.post("/v1/completions", **body).text)
    assert all("usage" not in document for document in plain)
    assert plain[-1]["choices"][0]["finish_reason"] == "length"
    answer = server.post("/v1/completions", **body, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(answer.text)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "fed"
    assert all(piece["usage"] is None for piece in pieces)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    running = events(server.post("/v1/completions", **body, stream_options={"continuous_usage_stats": True}).text)
    assert running[-1]["usage"]["completion_tokens"] == 3


def test_echo_has_the_log_probabilities_of_the_prompt(server: RunningServer) -> None:
    """What a harness asks for to score a text: one token is generated and left out by its reader."""
    body: dict[str, Any] = {"prompt": [[97, 98, 99]], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    (choice,) = server.post("/v1/completions", **body).json()["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abcc"
    assert logprobs["tokens"] == ["a", "b", "c", "c"]
    assert logprobs["token_logprobs"] == [None, -1.5, -1.5, -1.5]
    assert logprobs["top_logprobs"] == [None, {"b": -1.5, "A": -0.5}, {"c": -1.5, "A": -0.5}, {"c": -1.5, "A": -0.5}]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    pieces = [piece["choices"][0] for piece in events(server.post("/v1/completions", **body, stream=True).text)]
    assert "".join(piece["text"] for piece in pieces) == "abcc"
    assert [token for piece in pieces for token in piece["logprobs"]["tokens"]] == logprobs["tokens"]
    assert [place for piece in pieces for place in piece["logprobs"]["text_offset"]] == [0, 1, 2, 3]


def test_echo_alone_generates_nothing(server: RunningServer) -> None:
    (choice,) = server.post("/v1/completions", prompt="abc", max_tokens=0, logprobs=0, echo=True).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["<bos>", "a", "b", "c"]
    assert choice["logprobs"]["top_logprobs"] is None


def test_extras_that_users_of_vllm_send(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": "abcdef", "stop": ["c"], "return_token_ids": True, "prompt_logprobs": 0}
    (choice,) = server.post("/v1/completions", **body, add_special_tokens=False).json()["choices"]
    assert (choice["text"], choice["stop_reason"], choice["token_ids"]) == ("fed", "c", [102, 101, 100, 99])
    assert choice["prompt_token_ids"] == [97, 98, 99, 100, 101, 102]
    assert choice["prompt_logprobs"][1] == {"98": {"logprob": -1.5, "rank": 2, "decoded_token": "b"}}
    answer = server.post("/v1/completions", prompt="ab", ignore_eos=True, max_tokens=7, min_tokens=7)
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "a", "top_p": 7}, "top_p", "top_p is 7.0"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "no prompt"),
        ({"prompt": 5}, "prompt", "prompt is 5. It must be a text, a list of texts, token ids"),
        ({"prompt": ["a", None]}, "prompt", "prompt is ['a', None]. It must be a text"),
        ({"prompt": "a", "stop": 5}, "stop", "stop is 5. It must be a text, or a list of texts."),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "temperature is 'hot'. Input should be a valid number"),
        ({"prompt": "a", "priority": 2**70}, "priority", "It must be from -2**63 to 2**63 - 1."),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({}, "prompt", "prompt is missing."),
        ({"prompt": "a", "n": 1000}, "n", "n is 1000, and this server allows at most 128."),
        ({"prompt": ["a"] * 1000}, "prompt", "prompt has 1000 prompts, and this server allows at most 128."),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "logprobs is 21, and this server allows at most 20."),
        ({"prompt": "a", "logprobs": -1}, "logprobs", "logprobs is -1, and this server allows 0 to 20."),
        ({"prompt": "a", "stop": ["x"] * 65}, "stop", "stop has 65 texts, and this server allows at most 64."),
        ({"prompt": "a", "stop": "x" * 6401}, "stop", "stop has 6401 characters in one text"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of", "best_of is 3"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format", "known are text"),
        ({"prompt": "a", "structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"prompt": "a", "structured_outputs": {"json": {"type": "foo"}}}, "structured_outputs", "Invalid type"),
        ({"prompt": "a", "structured_outputs": {"a": 1}}, "structured_outputs", "structured_outputs has no field 'a'"),
        ({"prompt": "a", "structured_outputs": {"regex": 5}}, "structured_outputs", "structured_outputs.regex is 5."),
        (
            {"prompt": "a", "structured_outputs": {"json": {"$ref": "#"}}},
            "structured_outputs",
            "it speaks of itself without an end",
        ),
        (
            {"prompt": "a", "response_format": _schema_format({"type": "foo"})},
            "response_format",
            "The JSON schema in response_format cannot be used: Invalid type: foo.",
        ),
        (
            {"prompt": "a", "response_format": _schema_format({"const": float("inf")})},
            "response_format",
            "The schema in response_format is",
        ),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt", "empty"),
        ({"prompt": "a", "seed": 2**70}, "seed", "seed is"),
        ({"prompt": [2**70]}, "prompt", "not in the vocabulary"),
        ({"prompt": [2, 5]}, "n", "The core refuses it"),
    ],
)
def test_what_is_refused_names_its_field(server: RunningServer, body: Any, param: str, words: str) -> None:
    headers = {"content-type": "application/json"}
    for stream in (False, True):
        answer = server.http.post("/v1/completions", content=json.dumps({**body, "stream": stream}), headers=headers)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert words in error["message"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(server: RunningServer) -> None:
    answer = server.post("/v1/completions", prompt=[97] * 1500)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "1500" in error["message"]
    assert "1000" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_another_model_is_not_found(server: RunningServer) -> None:
    answer = server.post("/v1/completions", model="gpt-9", prompt="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert server.post("/v1/completions", model="other", prompt="a").json()["model"] == "fake"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "The request body is no JSON: "),
        (b"", "Send one, with the header Content-Type: application/json."),
        (b"[]", "Send one, with the header Content-Type: application/json."),
        (b'"x"', "Send one, with the header Content-Type: application/json."),
        (b"null", "Send one, with the header Content-Type: application/json."),
        (b'{"prompt": "\xff"}', "Send JSON in UTF-8, with fewer levels and shorter numbers."),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Send JSON in UTF-8, with fewer levels"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "Send JSON in UTF-8, with fewer levels"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_what_is_no_json_is_refused_as_such(server: RunningServer, path: str, content: bytes, words: str) -> None:
    answer = server.http.post(path, content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", None)
    assert words in error["message"]


@pytest.mark.parametrize("field", ["prompt", "stop", "cache_salt", "bad_words", "user"])
def test_half_a_character_is_refused_wherever_it_matters(server: RunningServer, field: str) -> None:
    value = '["\\ud800"]' if field in ("stop", "bad_words") else '"\\ud800"'
    prompt = "" if field == "prompt" else '"prompt": "a", '
    content, headers = f'{{{prompt}"{field}": {value}}}', {"content-type": "application/json"}
    answer = server.http.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == (200 if field == "user" else 400), answer.text
    assert field == "user" or answer.json()["error"]["param"] == field
    server.until(server.is_idle)
