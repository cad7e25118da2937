"""Structured outputs of a real model, through HTTP and OpenAI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from octavo.server.settings import ServerSettings
from tests.server.running import RunningServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "demo-smollm2"
MESSAGES: list[Any] = [{"role": "user", "content": "Name a book, its year and its kind, as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "year": {"type": "integer", "minimum": 1400, "maximum": 2030},
        "kind": {"enum": ["novel", "play"]},
    },
    "required": ["title", "year", "kind"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "book", "schema": SCHEMA}}


class Book(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    year: int
    kind: Literal["novel", "play"]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    settings = ServerSettings(served_model_names=(MODEL,), tool_call_parser="hermes")
    # In bfloat16 a cached prefix may turn a near tie.
    server = RunningServer(MODEL, settings, max_model_len=512, kv_memory="64MiB", dtype="float32")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.stop()


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 80, **fields}
    )


def test_a_schema_holds_whole_and_in_a_stream_and_for_each_of_several(client: openai.OpenAI) -> None:
    whole = ask(client, response_format=FORMAT).choices[0]
    assert whole.finish_reason == "stop"
    jsonschema.validate(json.loads(whole.message.content), SCHEMA)
    stream = ask(client, response_format=FORMAT, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream) == whole.message.content
    several = ask(client, response_format=FORMAT, n=3, temperature=1.5, seed=3, max_tokens=200).choices
    for choice in several:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        else:
            assert choice.message.content.lstrip().startswith("{")
    assert len({choice.message.content for choice in several}) == 3


def test_a_pydantic_model_comes_back_parsed(client: openai.OpenAI) -> None:
    done = client.beta.chat.completions.parse(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=80, response_format=Book
    )
    assert isinstance(done.choices[0].message.parsed, Book)


def test_other_forms(client: openai.OpenAI) -> None:
    def form(**fields: Any) -> str:
        text: str = ask(client, extra_body={"structured_outputs": fields}).choices[0].message.content
        return text

    assert form(choice=["novel", "play"]) in ("novel", "play")
    assert re.fullmatch(r"In \d{4}, [A-Z][a-z]{1,9}\.", form(regex=r"In \d{4}, [A-Z][a-z]{1,9}\."))
    assert re.fullmatch(r"\[(a|b)(,(a|b)){2}\]", form(grammar='root ::= "[" x "," x "," x "]"\nx ::= "a" | "b"'))
    completion = client.completions.create(
        model=MODEL, prompt="The answer is", max_tokens=9, temperature=0, logprobs=4,
        extra_body={"structured_outputs": {"choice": [" yes", " no"]}},
    ).choices[0]  # fmt: skip
    assert completion.text in (" yes", " no")
    # The log probabilities are of what may come: with these two as whole tokens, they are all there is.
    assert completion.logprobs.top_logprobs[0].keys() <= {" yes", " no", " ", " y", " n", " ye"}


def test_a_tool_can_be_forced(client: openai.OpenAI) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "find", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
    ]
    choice: Any = {"type": "function", "function": {"name": "find"}}
    done = ask(client, tools=tools, tool_choice=choice, max_tokens=150).choices[0]
    (call,) = done.message.tool_calls
    assert call.function.name == "find"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_what_others_get_in_the_same_steps_does_not_change(client: openai.OpenAI) -> None:
    alone = ask(client, extra_body={"return_token_ids": True}).choices[0]
    with ThreadPoolExecutor(4) as pool:
        formed = [pool.submit(ask, client, response_format=FORMAT) for _ in range(3)]
        beside = pool.submit(ask, client, extra_body={"return_token_ids": True}).result().choices[0]
        texts = {future.result().choices[0].message.content for future in formed}
    assert beside.model_extra["token_ids"] == alone.model_extra["token_ids"]
    assert len(texts) == 1


@pytest.mark.parametrize("form", [{"json": {"type": "novel"}}, {"regex": "("}, {"grammar": "start: missing"}])
def test_a_mistake_is_told_as_such(client: openai.OpenAI, form: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body={"structured_outputs": form})
    assert caught.value.param == "structured_outputs"
