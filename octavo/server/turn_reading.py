"""How the turns that answer one request are read: which tool calls and which reasoning may be in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from octavo.engine.conversation import Message
from octavo.engine.tokenizer import Tokenizer
from octavo.parameters import shown
from octavo.server.bodies import ChatBody
from octavo.server.failures import ServerError
from octavo.server.output_forms import forced_call
from octavo.server.settings import ServerSettings
from octavo.server.tool_formats import TOOL_FORMATS, ToolFormat, find_tool_format
from octavo.server.turn_parser import REASONING_MARKS, ReasoningMarks, TurnParser, find_reasoning_marks
from octavo.structured_outputs import StructuredOutputsParams

AUTO, NONE = "auto", "none"
TOOL_CALL_PARSERS = (AUTO, NONE, *TOOL_FORMATS)
REASONING_PARSERS = (NONE, AUTO, *REASONING_MARKS)


class TurnReading(NamedTuple):
    """What to look for. `tools` is None where nothing is a tool call, `reasoning` where reasoning stays content."""

    tools: ToolFormat | None
    reasoning: ReasoningMarks | None
    has_begun_reasoning: bool
    """Whether the prompt ends within reasoning."""
    has_ended_reasoning: bool
    """Whether the prompt ends behind reasoning, as templates write that are told to have none."""
    shows_reasoning: bool

    def parser(self) -> TurnParser:
        """A parser for one turn."""
        return TurnParser(tools=self.tools, reasoning=self.reasoning, has_begun_reasoning=self.has_begun_reasoning)

    def forced_call(self, tokenizer: Tokenizer, tool_choice: str | dict[str, Any]) -> StructuredOutputsParams:
        """The form of an answer that is a call, as `forced_call` has it. Raises `ServerError` (400) where it cannot be
        forced, because no tools are offered or nobody knows how the model writes calls."""
        if isinstance(tool_choice, str) and tool_choice != "required":
            raise ServerError(
                400, "tool_choice may be none, auto, required, or a function by its name.", param="tool_choice"
            )
        if self.tools is None:
            raise ServerError(
                400,
                f"tool_choice is {shown(tool_choice)}, which forces a call, and there are no tools, or nobody knows "
                "how this model writes calls. Send tools, and start the server with the model's --tool-call-parser.",
                param="tool_choice",
            )
        before, after = (_lark_terms(text, self.tools.marks, tokenizer) for text in self.tools.around)
        return forced_call(self.tools.schemas, tool_choice, (before, after))

    def behind_reasoning(self, form: StructuredOutputsParams) -> StructuredOutputsParams:
        """`form`, which begins where the reasoning has ended that this turn has begun, or may begin with."""
        if self.reasoning is None or self.has_ended_reasoning:
            return form
        begin, end = self.reasoning
        return msgspec.structs.replace(
            form, reasoning_end=end, reasoning_begin=None if self.has_begun_reasoning else begin
        )

    def needs_special_tokens(self, tokenizer: Tokenizer) -> bool:
        """Whether what is looked for is written in special tokens, which a text without them does not show."""
        marks = [*(self.tools.marks if self.tools else ()), *(self.reasoning or ())]
        ids = [tokenizer.encode(mark, add_special_tokens=False) for mark in marks]
        return any(len(found) == 1 and tokenizer.is_special(found[0]) for found in ids)


def _lark_terms(text: str, marks: Sequence[str], tokenizer: Tokenizer) -> str:
    """`text` in the words of a Lark grammar; a mark in front of it that is a special token is named by its id."""
    terms = ""
    mark = next((mark for mark in marks if text.startswith(mark)), "")
    ids = tokenizer.encode(mark, add_special_tokens=False) if mark else []
    if len(ids) == 1 and tokenizer.is_special(ids[0]):
        terms, text = f"<[{ids[0]}]> ", text.removeprefix(mark)
    return terms + (json.dumps(text) if text else "")


def turn_reading(settings: ServerSettings, tokenizer: Tokenizer, body: ChatBody, prompt: str) -> TurnReading:
    """What to look for in the answers to `body`, of which the chat template made `prompt`.

    A parser named `auto` is the one whose marks the chat template has.
    """
    offers_tools = bool(body.tools) and body.tool_choice != NONE
    template = settings.chat_template or tokenizer.template_source(has_tools=offers_tools)
    tools = None
    if offers_tools:
        name = settings.tool_call_parser
        name = find_tool_format(template) or NONE if name == AUTO else name
        tools = None if name == NONE else TOOL_FORMATS[name](body.tools or [])
    name = settings.reasoning_parser
    if body.separate_reasoning is not None:
        name = (AUTO if name == NONE else name) if body.separate_reasoning else NONE
    name = find_reasoning_marks(template) or NONE if name == AUTO else name
    reasoning = None if name == NONE else REASONING_MARKS[name]
    return TurnReading(
        tools,
        reasoning,
        has_begun_reasoning=reasoning is not None and prompt.rstrip().endswith(reasoning.begin),
        has_ended_reasoning=reasoning is not None and prompt.rstrip().endswith(reasoning.end),
        shows_reasoning=body.include_reasoning is not False,
    )


def checked_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`tools`, each of which has a function with a name. Raises `ServerError` (400) for the first that has none."""
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ServerError(
                400,
                f'tools[{index}] has no function with a name: {{"type": "function", "function": {{"name": ...}}}}.',
                param="tools",
            )
    return [dict(tool) for tool in tools]


def with_loaded_arguments(messages: Sequence[Message]) -> list[Message]:
    """`messages` with the arguments of earlier tool calls as objects, which templates write as their model knows them.

    Clients send them back as the text of JSON that they got. Raises `ServerError` (400) for one that is no object.
    """
    return [
        {**message, "tool_calls": [_loaded(call, index) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for index, message in enumerate(messages)
    ]


def _loaded(call: Any, index: int) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ServerError(
            400,
            f"A tool call in messages[{index}] has the arguments {text!r:.60}, which are no JSON object.",
            param="messages",
        )
    return {**call, "function": {**function, "arguments": arguments}}
