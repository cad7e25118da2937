"""A turn gives the same reasoning, content and calls whatever pieces its text comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.tool_formats import TOOL_FORMATS, ToolCall
from octavo.server.turn_parser import REASONING_MARKS, TurnParser, TurnPiece, find_reasoning_marks

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}, "page": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
FORMATS = [None, *TOOL_FORMATS]
PARTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '{"name": "look", ', '"na',
    '"arguments": {"word": "a}"}}', '"parameters": {"page": 3}}', '[{"name": "stop"}]', "look[ARGS]", '{"x": [1, 2]}',
    "<function=look>\n", "<parameter=word>\n7\n</parameter>\n", "</function>", ";", "}", "{", " ", "\n", "text", "é",
]  # fmt: skip


def parser(tools: str | None = None, reasoning: str | None = None, *, begun: bool = False) -> TurnParser:
    marks = REASONING_MARKS[reasoning] if reasoning else None
    return TurnParser(tools=TOOL_FORMATS[tools](TOOLS) if tools else None, reasoning=marks, has_begun_reasoning=begun)


def parsed(turn: TurnParser, *pieces: str) -> TurnPiece:
    found = TurnPiece()
    for piece in pieces:
        found = found.then(turn.feed(piece))
    return found.then(turn.end())


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.data())
def test_the_pieces_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    tools = data.draw(st.sampled_from(FORMATS))
    reasoning = data.draw(st.sampled_from([None, "think"]))
    begun = data.draw(st.booleans()) and reasoning is not None
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(parser(tools, reasoning, begun=begun), *pieces) == parsed(
        parser(tools, reasoning, begun=begun), text
    ), pieces


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.sampled_from(FORMATS))
def test_what_is_no_call_and_no_reasoning_stays_content(parts: list[str], tools: str | None) -> None:
    text = "".join(parts)
    found = parsed(parser(tools), text)
    if tools is None:
        assert found == TurnPiece(content=text)
    if not found.calls:
        assert found.content.split() == text.split()
    for call in found.calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("tools", "text", "content", "calls"),
    [
        ("hermes", 'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"word": "tea", "page": 2}}</tool_call>',
         "Let me see.", [("look", {"word": "tea", "page": 2})]),
        ("hermes", '<tool_call>{"name": "look", "arguments": {}}</tool_call>\n<tool_call>{"name": "stop"}</tool_call>',
         "", [("look", {}), ("stop", {})]),
        ("hermes", '<tool_call>{"name": "look", "arguments": "{\\"word\\": \\"a\\"}"}', "", [("look", {"word": "a"})]),
        ("hermes", "<tool_call>not json</tool_call> end", "<tool_call>not json</tool_call> end", []),
        ("hermes", "a <tool_call", "a <tool_call", []),
        ("hermes", "<tool_call>\n<function=look>\n<parameter=word>\n12\n</parameter>\n<parameter=page>\n12\n"
         "</parameter>\n</function>\n</tool_call>", "", [("look", {"word": "12", "page": 12})]),
        ("hermes", "<tool_call>\n<function=stop>\n</function>\n</tool_call>", "", [("stop", {})]),
        ("mistral", '[TOOL_CALLS] [{"name": "look", "arguments": {"page": 1}}, {"name": "stop", "arguments": {}}]',
         "", [("look", {"page": 1}), ("stop", {})]),
        ("mistral", 'So: [TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{"page": 1}[TOOL_CALLS]stop{}', "So:",
         [("look", {"page": 1}), ("stop", {})]),
        ("mistral", '[TOOL_CALLS] [{"name": "x", "arguments": 3}]', '[TOOL_CALLS] [{"name": "x", "arguments": 3}]', []),
        ("llama3_json", '{"name": "look", "parameters": {"word": "x;}"}}', "", [("look", {"word": "x;}"})]),
        ("llama3_json", '<|python_tag|>{"name": "look", "parameters": {}}; {"name": "stop", "parameters": {}}', "",
         [("look", {}), ("stop", {})]),
        ("llama3_json", '{"name": "Ann", "parameters": {}}', '{"name": "Ann", "parameters": {}}', []),
        ("llama3_json", 'So {"name": "look", "parameters": {}}', 'So {"name": "look", "parameters": {}}', []),
        ("llama3_json", '{"age": 3}', '{"age": 3}', []),
    ],
)  # fmt: skip
def test_each_format(tools: str, text: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    wanted = tuple(ToolCall(name, json.dumps(arguments)) for name, arguments in calls)
    assert parsed(parser(tools), text) == TurnPiece(content=content, calls=wanted)
    assert parsed(parser(tools), *text) == TurnPiece(content=content, calls=wanted)


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nhm\n\nyes\n</think>\n\nGood.", False, "hm\n\nyes", "Good."),
        ("\nhm </think>Good.", True, "hm", "Good."),
        ("<think>\n\n</think>\n\nGood.", False, "", "Good."),
        ("<think>cut off ", False, "cut off", ""),
        ("Good. <think>no</think>", False, "", "Good. <think>no</think>"),
        (" <thi", False, "", " <thi"),
    ],
)
def test_reasoning_is_split_off_at_the_beginning(text: str, begun: bool, reasoning: str, content: str) -> None:
    assert parsed(parser(reasoning="think", begun=begun), *text) == TurnPiece(reasoning, content)


def test_calls_within_reasoning_are_none() -> None:
    text = '<think><tool_call>{"name": "stop"}</tool_call></think><tool_call>{"name": "look"}</tool_call>'
    found = parsed(parser("hermes", "think"), text)
    assert (found.reasoning, found.content) == ('<tool_call>{"name": "stop"}</tool_call>', "")
    assert found.calls == (ToolCall("look", "{}"),)


def test_content_that_cannot_be_a_call_does_not_wait() -> None:
    assert parser("llama3_json").feed('{"age": ').content == '{"age":'
    assert parser("llama3_json").feed('{ "na').content == ""
    assert parser("hermes").feed("one < two").content == "one < two"
    turn = parser("hermes")
    assert turn.feed("one <tool").content == "one"
    assert turn.feed("s>").content == " <tools>"


def test_marks_are_found_in_templates() -> None:
    assert find_reasoning_marks("{% if '</think>' in content %}") == "think"
    assert find_reasoning_marks("{{ messages }}") is None
