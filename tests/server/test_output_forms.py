"""What forms clients ask for, and that a forced call is what the parser of its format reads back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.server.failures import ServerError
from octavo.server.output_forms import forced_call, wanted_form
from octavo.server.tool_formats import TOOL_FORMATS
from octavo.server.turn_parser import TurnParser
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.toy_grammars import COMPILER, TOKENIZER, allowed

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


def test_what_openai_and_vllm_call_a_form() -> None:
    assert wanted_form(None, None) is None
    assert wanted_form({}, None) is None
    assert wanted_form({"type": "text"}, None) is None
    assert wanted_form({"type": "json_object"}, None) == StructuredOutputsParams(json_object=True)
    asked = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    assert wanted_form(asked, None) == StructuredOutputsParams(json=json.dumps(SCHEMA))
    assert wanted_form(None, {"choice": ["a", "b"]}) == StructuredOutputsParams(choice=["a", "b"])
    assert wanted_form({"type": "text"}, {"regex": "a"}) == StructuredOutputsParams(regex="a")


@pytest.mark.parametrize(
    ("response_format", "structured_outputs", "words"),
    [
        ({"type": "xml"}, None, "known are text, json_object, json_schema"),
        ({"type": "json_schema"}, None, "has no schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, None, "has no schema"),
        ({"type": "json_schema", "json_schema": {"schema": 3}}, None, "has no schema"),
        ({"type": "json_object"}, {"regex": "a"}, "both ask for a form"),
        (None, {"regx": "a"}, "Did you mean regex"),
        (None, {}, "none of json"),
    ],
)
def test_what_is_no_form(response_format: Any, structured_outputs: Any, words: str) -> None:
    with pytest.raises((ServerError, RequestError)) as caught:
        wanted_form(response_format, structured_outputs)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_read_back_by_its_format(name: str, choice: Any) -> None:
    tools = TOOL_FORMATS[name](TOOLS)
    before, after = (json.dumps(text) if text else "" for text in tools.around)
    matcher = COMPILER.matcher(forced_call(tools.schemas, choice, (before, after)))
    tokens, text = TOKENIZER.token_bytes(), b""
    prefer = [*b'"}]w', *b",:"]
    while not matcher.is_stopped():
        following = allowed(matcher.compute_bitmask())
        token = next((token for token in prefer if token in following), following[-1])
        assert matcher.consume_token(token)
        text += tokens[token]
    parser = TurnParser(tools=tools, reasoning=None, has_begun_reasoning=False)
    turn = parser.feed(text.decode()).then(parser.end())
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [("weather", {"city": "Oslo"})]
    assert not (turn.content or "").strip()


def test_a_tool_that_there_is_not_cannot_be_forced() -> None:
    with pytest.raises(ServerError, match="no such tool"):
        forced_call({"now": None}, {"type": "function", "function": {"name": "weather"}}, ("", ""))
    with pytest.raises(ServerError, match="no such tool"):
        forced_call({}, "required", ("", ""))
