"""What is looked for in an answer, by settings, chat template and request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.server.bodies import ChatBody
from octavo.server.failures import ServerError
from octavo.server.settings import ServerSettings
from octavo.server.tool_formats import HermesFormat, MistralFormat
from octavo.server.turn_parser import REASONING_MARKS
from octavo.server.turn_reading import TurnReading, turn_reading, with_loaded_arguments
from octavo.structured_outputs import StructuredOutputsParams

TEMPLATE = "{{ '<tool_call>' }} {{ '</think>' }}"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look"}}]
THINK = REASONING_MARKS["think"]


def tokenizer(template: str = TEMPLATE, special: str = "") -> Any:
    """One whose only long tokens are special: the text `special`."""
    return SimpleNamespace(
        template_source=lambda *, has_tools: template,
        encode=lambda text, add_special_tokens: [1000] if text == special else list(text.encode()),
        is_special=lambda token_id: token_id == 1000,
    )


def reading(settings: dict[str, Any], prompt: str = "", template: str = TEMPLATE, **fields: Any) -> TurnReading:
    body = ChatBody(messages=[{"role": "user", "content": ""}], **fields)
    return turn_reading(ServerSettings(**settings), tokenizer(template), body, prompt)


def test_the_chat_template_tells_the_format_unless_the_settings_do() -> None:
    assert isinstance(reading({}, tools=TOOLS).tools, HermesFormat)
    assert isinstance(reading({"tool_call_parser": "mistral"}, tools=TOOLS).tools, MistralFormat)
    assert isinstance(reading({"chat_template": "[TOOL_CALLS]"}, tools=TOOLS).tools, MistralFormat)
    assert reading({"tool_call_parser": "none"}, tools=TOOLS).tools is None
    assert reading({}, tools=TOOLS, tool_choice="none").tools is None
    assert reading({}, tools=TOOLS, template="{{ messages }}").tools is None
    assert reading({"tool_call_parser": "hermes"}).tools is None


@pytest.mark.parametrize(
    ("parser", "asked", "found"),
    [
        ("none", None, None), ("none", True, THINK), ("none", False, None), ("auto", None, THINK),
        ("auto", False, None), ("think", None, THINK), ("magistral", True, REASONING_MARKS["magistral"]),
    ],
)  # fmt: skip
def test_reasoning_is_looked_for_on_request(parser: str, asked: bool | None, found: object) -> None:
    assert reading({"reasoning_parser": parser}, separate_reasoning=asked).reasoning == found
    if parser in ("auto", "none"):
        assert reading({"reasoning_parser": parser}, separate_reasoning=asked, template="").reasoning is None


def test_a_prompt_may_end_within_reasoning() -> None:
    assert reading({"reasoning_parser": "auto"}, "<assistant><think>\n").has_begun_reasoning
    assert not reading({"reasoning_parser": "auto"}, "<assistant>").has_begun_reasoning
    assert not reading({}, "<assistant><think>\n").has_begun_reasoning


def test_a_form_begins_behind_reasoning_that_was_begun_or_may_begin() -> None:
    form = StructuredOutputsParams(choice=["a"])

    def marks(settings: dict[str, Any], prompt: str) -> tuple[str | None, str | None]:
        found = reading(settings, prompt).behind_reasoning(form)
        assert found.choice == form.choice
        return found.reasoning_begin, found.reasoning_end

    split = {"reasoning_parser": "auto"}
    assert marks(split, "<assistant><think>\n") == (None, "</think>")
    assert marks(split, "<assistant>") == ("<think>", "</think>")
    assert marks(split, "<assistant><think>\n\n</think>\n\n") == (None, None)
    assert marks({}, "<assistant><think>\n") == (None, None)


def test_special_tokens_are_shown_where_a_mark_is_one() -> None:
    found = reading({}, tools=TOOLS)
    assert found.needs_special_tokens(tokenizer(special="<tool_call>"))
    assert not found.needs_special_tokens(tokenizer(special="</think>"))
    assert reading({"reasoning_parser": "think"}).needs_special_tokens(tokenizer(special="</think>"))


def test_calls_go_back_to_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"word": "tea"}'}}
    (turned,) = with_loaded_arguments([{"role": "assistant", "tool_calls": [call, "odd"]}])
    assert turned["tool_calls"][0]["function"]["arguments"] == {"word": "tea"}
    assert turned["tool_calls"][1] == "odd"
    for text in ("no json", "[1]"):
        call["function"] = {"name": "look", "arguments": text}
        with pytest.raises(ServerError, match=r"messages\[1\] has the arguments"):
            with_loaded_arguments([{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [call]}])


WEATHER: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("parser", "special", "start"),
    [
        ("hermes", "", 'start: "<tool_call>\\n" call "\\n</tool_call>"\n'),
        ("hermes", "<tool_call>", 'start: <[1000]> "\\n" call "\\n</tool_call>"\n'),
        ("mistral", "[TOOL_CALLS]", 'start: <[1000]> "[" call "]"\n'),
        ("llama3_json", "<|python_tag|>", "start: call\n"),
    ],
)
def test_a_forced_call_is_written_as_the_model_writes_calls(parser: str, special: str, start: str) -> None:
    found = reading({"tool_call_parser": parser}, tools=WEATHER, tool_choice="required")
    form = found.forced_call(tokenizer(special=special), "required")
    assert (form.grammar or "").startswith(start)


@pytest.mark.parametrize(
    ("fields", "choice", "words"),
    [
        ({}, "required", "tool_choice is 'required', which forces a call, and"),
        ({"tools": TOOLS}, "always", "may be none, auto, required"),
        ({"tools": TOOLS}, {"type": "function", "function": {"name": "no"}}, "no such tool"),
    ],
)
def test_what_cannot_be_forced(fields: dict[str, Any], choice: Any, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        reading({"tool_call_parser": "hermes"}, **fields).forced_call(tokenizer(), choice)
