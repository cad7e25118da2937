"""What form an output must have: a JSON schema, a regular expression, one of some texts, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import msgspec

from octavo.errors import RequestError
from octavo.parameters import FLAG, Field, KeywordParameters, check_bounds, read_fields

MAX_FORM_CHARS = 2**18
"""Longest text of a schema, an expression, a grammar, or of all choices together."""

MAX_CHOICES = 10_000

MAX_MARK_CHARS = 64
"""Longest mark around reasoning."""

_MARK = f"a mark of 1 to {MAX_MARK_CHARS} characters"
_OPTIONAL = ("json", "regex", "choice", "grammar", "whitespace_pattern", "reasoning_end", "reasoning_begin")
_KINDS = ("json", "regex", "choice", "grammar", "json_object")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, metaclass=KeywordParameters):
    """The form of an output: exactly one of the first five. Names are those that users of vLLM know.

    Every token is chosen among those with which the text can still get that form, and the request ends with `stop`
    when it has it and nothing can follow. Raises `RequestError` for an impossible value.
    """

    json: str | None = None
    """A JSON schema: an object, or its text. The output is a JSON value that it accepts."""
    regex: str | None = None
    """The whole output matches it, as by Python's `re.fullmatch` without look-around and back-references."""
    choice: tuple[str, ...] | None = None
    """The output is one of these texts."""
    grammar: str | None = None
    """A context-free grammar: GBNF (`root ::= ...`), or Lark as llguidance reads it (`start: ...`)."""
    json_object: bool = False
    """True: any JSON object."""
    disable_any_whitespace: bool = False
    """True: no white space between the parts of a JSON value."""
    whitespace_pattern: str | None = None
    """What may stand between the parts of a JSON value: a regular expression."""
    reasoning_end: str | None = None
    """A mark such as `</think>`, behind which the form begins: until then the output is any text, and cannot end."""
    reasoning_begin: str | None = None
    """The mark with which that text begins: an output that begins otherwise has the form from its start. None: the
    prompt ends in reasoning, so the text is always there. Only with `reasoning_end`."""

    REFUSED: ClassVar[dict[str, str]] = {
        "structural_tag": "Write a grammar with the tags in it.",
        "disable_fallback": "Leave it out: one library does it all.",
        "disable_additional_properties": 'Write "additionalProperties": false into the schema.',
    }
    """Fields of other engines that are not supported -> what to do instead."""

    def __post_init__(self) -> None:
        read_fields(self, _READERS, optional=_OPTIONAL)
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = f"{' and '.join(given)} at once" if given else "none of " + ", ".join(_KINDS)
            raise RequestError(
                f"structured_outputs has {what}.", remedy="Give exactly one of them.", parameter="structured_outputs"
            )
        check_bounds(self, self._rules())

    def _rules(self) -> list[tuple[bool, str, str]]:
        texts = (self.json, self.regex, self.grammar, self.whitespace_pattern)
        longest = max(*(len(text or "") for text in texts), sum(map(len, self.choice or ())))
        (kind,) = (name for name in _KINDS if getattr(self, name) not in (None, False))
        is_json = kind in ("json", "json_object")
        return [
            (longest <= MAX_FORM_CHARS, kind, f"at most {MAX_FORM_CHARS:,} characters long (it has {longest:,})"),
            (self.choice is None or 0 < len(self.choice) <= MAX_CHOICES, "choice", f"1 to {MAX_CHOICES:,} texts"),
            (self.regex != "" and self.grammar != "", kind, "text that is not empty"),
            (is_json or not self.disable_any_whitespace, "disable_any_whitespace", "left out: it speaks of JSON"),
            (is_json or self.whitespace_pattern is None, "whitespace_pattern", "left out: it speaks of JSON"),
            (self.reasoning_end is None or 0 < len(self.reasoning_end) <= MAX_MARK_CHARS, "reasoning_end", _MARK),
            (self.reasoning_begin is None or 0 < len(self.reasoning_begin) <= MAX_MARK_CHARS, "reasoning_begin", _MARK),
            (
                self.reasoning_begin is None or self.reasoning_end is not None,
                "reasoning_begin",
                "left out where there is no reasoning_end",
            ),
        ]


def structured_outputs_from(value: Any) -> StructuredOutputsParams:
    """`StructuredOutputsParams` as they are, or of a mapping of their fields.

    Raises `TypeError` for anything else, and `RequestError` as they do.
    """
    if isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError
    return StructuredOutputsParams(**value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half a surrogate pair is no character
    return value


def _schema_text(value: Any) -> str:
    """The text of a JSON schema, checked to be JSON and of a shape that a schema may have."""
    try:
        parsed = json.loads(_text(value), parse_constant=_refuse_constant) if isinstance(value, str) else value
        if not isinstance(parsed, Mapping | bool):
            raise TypeError
        return value if isinstance(value, str) else _text(json.dumps(parsed, ensure_ascii=False, allow_nan=False))
    except RecursionError:
        raise ValueError from None


def _refuse_constant(name: str) -> Any:
    """`NaN` and `Infinity` are no JSON."""
    raise ValueError(name)


def _choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return tuple(_text(text) for text in cast("list[Any]", value))


_TEXT = Field(_text, "a text")
_READERS: dict[str, Field] = {
    "json": Field(_schema_text, "a JSON schema: an object, or the text of one"),
    "regex": _TEXT,
    "choice": Field(_choices, "a list of texts"),
    "grammar": _TEXT,
    "json_object": FLAG,
    "disable_any_whitespace": FLAG,
    "whitespace_pattern": _TEXT,
    "reasoning_end": _TEXT,
    "reasoning_begin": _TEXT,
}
"""Field of `StructuredOutputsParams` -> how it is read."""
