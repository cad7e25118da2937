"""From `StructuredOutputsParams` to the grammar that llguidance reads."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any

from octavo.errors import RequestError
from octavo.structured_outputs import StructuredOutputsParams

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


_BLANKS = r"BLANKS: /\s{1,4}/"
"""What models write between their reasoning and their answer."""


def grammar_text(params: StructuredOutputsParams, mark_id: Callable[[str], int | None]) -> str:
    """llguidance's JSON form of a grammar. Not yet checked: what it says may make no sense.

    Parameters:
        mark_id: the special token that a text is, None where it is none.

    Raises `RequestError` for GBNF that cannot be read.
    """
    form = _form(params)
    if params.reasoning_end is None:
        return _grammars(form)
    around = _reasoning_before(params.reasoning_begin, params.reasoning_end, mark_id)
    return _grammars({"lark_grammar": around}, {"name": "form", **form})


def _form(params: StructuredOutputsParams) -> dict[str, Any]:
    """The form itself, as one of llguidance's grammars."""
    if params.json is not None or params.json_object:
        schema: Any = json.loads(params.json) if params.json is not None else {"type": "object"}
        return {"json_schema": _with_whitespace(schema, params)}
    if params.regex is not None:
        return {"lark_grammar": f"start: {_lark_regex(params.regex)}"}
    if params.choice is not None:
        return {"lark_grammar": "start: " + " | ".join(map(lark_text, dict.fromkeys(params.choice)))}
    grammar = params.grammar or ""
    return {"lark_grammar": _from_gbnf(grammar) if _GBNF_RULE.search(grammar) else grammar}


def _reasoning_before(begin: str | None, end: str, mark_id: Callable[[str], int | None]) -> str:
    """A Lark grammar of reasoning with the grammar `form` behind it. No text is part of a special token, so one that
    ends the reasoning is not looked for in the text."""

    def term(mark: str) -> str:
        number = mark_id(mark)
        return lark_text(mark) if number is None else f"<[{number}]>"

    if mark_id(end) is None:
        thought, rule = "thought", f"thought[suffix={lark_text(end)}]: /(?s:.*)/"
    else:
        thought, rule = f"THOUGHT? {term(end)}", "THOUGHT: /(?s:.+)/"
    opening = "" if begin is None else f"{term(begin)} "
    optional = "" if begin is None else "?"
    return f"start: ({opening}{thought} BLANKS?){optional} @form\n{rule}\n{_BLANKS}\n"


def lark_text(text: str) -> str:
    """`text` as a Lark grammar quotes it. It is JSON's way; what is not printable is written by its number."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() or ord(char) > 0xFFFF else f"\\u{ord(char):04x}" for char in quoted)


def _grammars(*parts: dict[str, Any]) -> str:
    return json.dumps({"grammars": parts}, ensure_ascii=False)


def _with_whitespace(schema: Any, params: StructuredOutputsParams) -> Any:
    """The schema with what is asked of white space, in the words of the library, and nothing that it says itself in
    those words."""
    if not isinstance(schema, dict):
        return schema
    options: dict[str, Any] = {}
    if params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    plain = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {**plain, "x-guidance": options} if options else plain


def _lark_regex(regex: str) -> str:
    """`regex` between slashes, as a Lark grammar writes one."""
    converted: str = importlib.import_module("llguidance").regex_to_lark(regex, "")
    return f"/{converted}/"


def _from_gbnf(grammar: str) -> str:
    convert = importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark
    try:
        converted: str = convert(grammar)
    except (Exception, RecursionError) as error:  # the library raises nothing narrower
        raise RequestError(
            f"The grammar cannot be read: {' '.join(str(error).split())[:200]}.",
            remedy="Write it as GBNF (root ::= ...) or Lark (start: ...).",
            parameter="structured_outputs",
        ) from None
    return converted
