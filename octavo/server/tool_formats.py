"""The ways in which models write tool calls, and how each is read back.

A format says where a section of calls may begin, and reads one. What is no valid call stays text: nothing of an answer
is lost, and no client gets arguments that are not JSON.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_decode = json.JSONDecoder().raw_decode


class ToolCall(NamedTuple):
    """One call."""

    name: str
    arguments: str
    """A JSON object, as text."""


class Section(NamedTuple):
    """What was read: calls, or text that only looked like some where there are none."""

    calls: list[ToolCall]
    num_chars: int
    """Characters read."""


class ToolFormat(ABC):
    """One way of writing calls. Owns: what it knows of the tools. Never: keeps text."""

    marks: tuple[str, ...] = ()
    """Where a section may begin, anywhere in the text."""
    first_marks: tuple[str, ...] = ()
    """Where one may begin while nothing but calls has been written."""
    between: str = string.whitespace
    """Characters between sections that are no content."""
    around: tuple[str, str] = ("", "")
    """What a model writes before and after the JSON object of one call with `name` and `arguments`."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool.get("function") for tool in tools]
        self.schemas: dict[str, Any] = {
            function["name"]: function.get("parameters")
            for function in functions
            if isinstance(function, Mapping) and isinstance(function.get("name"), str)
        }
        """Parameters of each tool, by name."""

    @abstractmethod
    def read(self, text: str, *, ended: bool) -> Section | None:
        """Read the section with which `text` begins; None where more text is needed, which `ended` rules out."""

    def new_id(self) -> str:
        """An id for a call."""
        return f"call_{secrets.token_hex(12)}"


class HermesFormat(ToolFormat):
    """`<tool_call>` around a JSON object (Hermes, Qwen), or `<function=name>` with parameters (Qwen's coders)."""

    marks = ("<tool_call>",)
    around = ("<tool_call>\n", "\n</tool_call>")
    _END = "</tool_call>"
    _FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*)?", re.DOTALL)
    _PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

    def read(self, text: str, *, ended: bool) -> Section | None:
        end = text.find(self._END)
        if end < 0 and not ended:
            return None
        inside = text[len(self.marks[0]) : end if end >= 0 else len(text)]
        call = self._call(inside)
        return Section([call] if call else [], end + len(self._END) if end >= 0 else len(text))

    def _call(self, inside: str) -> ToolCall | None:
        match = self._FUNCTION.fullmatch(inside)
        if match is None:
            return _call_of(_loaded(inside))
        name, body = match.groups()
        properties = _properties(self.schemas.get(name))
        arguments = {
            key: _typed(value, properties.get(key)) for key, value in self._PARAMETER.findall(body)
        }  # the last of two that have one name
        return ToolCall(name, _dumped(arguments))


class MistralFormat(ToolFormat):
    """`[TOOL_CALLS]` before a JSON list of calls, or before a name and its arguments."""

    marks = ("[TOOL_CALLS]",)
    around = ("[TOOL_CALLS][", "]")
    _NAMED = re.compile(r"\s*([A-Za-z0-9_.\-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")

    def read(self, text: str, *, ended: bool) -> Section | None:
        if not ended and text.rstrip()[-1:] not in ("}", "]"):
            return None
        start = len(self.marks[0])
        named = self._NAMED.match(text, start)
        found = _value_at(text, named.end() if named else start)
        if found is None:
            return Section([], len(text)) if ended else None
        value, end = found
        if named:
            calls = [_call_of({"name": named[1], "arguments": value})]
        else:
            calls = [_call_of(entry) for entry in value] if isinstance(value, list) else [_call_of(value)]
        return Section([call for call in calls if call] if all(calls) else [], end)

    def new_id(self) -> str:
        """Nine letters and digits: the templates of these models take no other."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class LlamaFormat(ToolFormat):
    """A JSON object with `name` and `parameters` as the whole answer, several after each other with `;` between."""

    marks = ("<|python_tag|>",)
    first_marks = ("{",)
    between = string.whitespace + ";"
    _KEYS = ('"name"', '"parameters"', '"arguments"', '"type"', '"function"')

    def read(self, text: str, *, ended: bool) -> Section | None:
        start = text.index("{") if "{" in text else len(text)
        tag = text[:start].strip()
        if tag not in ("", *self.marks) or not self._may_be_call(text[start + 1 :].lstrip()):
            return Section([], max(1, len(tag)))
        if not ended and text.rstrip()[-1:] != "}":
            return None
        found = _value_at(text, start)
        if found is None:
            return Section([], len(text)) if ended else None
        call = _call_of(found[0])
        is_known = call is not None and (tag or call.name in self.schemas)
        return Section([call] if call and is_known else [], found[1])

    def _may_be_call(self, inside: str) -> bool:
        """Whether an object that goes on like this can be one: content in JSON must not wait for its end."""
        return any(inside.startswith(key) or key.startswith(inside) for key in self._KEYS)


TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": HermesFormat,
    "mistral": MistralFormat,
    "llama3_json": LlamaFormat,
}
"""Under the names that vLLM's `--tool-call-parser` has for them."""

_TOLD_BY = (
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("llama3_json", ("<|python_tag|>", '"parameters": dictionary of argument name')),
)
"""What a chat template writes before the calls of earlier turns, or asks the model to write."""


def find_tool_format(chat_template: str) -> str | None:
    """The name of the format that a model's chat template uses; None where it has none of them."""
    return next((name for name, signs in _TOLD_BY if any(sign in chat_template for sign in signs)), None)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins there, blanks passed over, and where it ends; None where there is no whole one."""
    start += len(text) - start - len(text[start:].lstrip())
    try:
        return _decode(text, start)
    except (ValueError, RecursionError):
        return None


def _call_of(value: Any) -> ToolCall | None:
    """The call that a JSON value is, if it is one. Some models write their arguments as a text of JSON."""
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _loaded(arguments)
    return ToolCall(name, _dumped(arguments)) if isinstance(arguments, dict) else None


def _dumped(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _typed(text: str, schema: Any) -> Any:
    """A parameter written as plain text: a string where its schema says so, otherwise JSON where it is some."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    value = _loaded(text)
    return text if value is None and text.strip() != "null" else value
