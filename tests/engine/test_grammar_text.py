"""Forms in the words of the library; what they mean is tested in `test_grammar_compiler.py`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.grammar_text import grammar_text, lark_text
from octavo.errors import RequestError
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.toy_grammars import COMPILER


def written(**form: object) -> dict[str, object]:
    text = grammar_text(StructuredOutputsParams(**form), lambda mark: None)  # type: ignore[arg-type]
    (grammar,) = json.loads(text)["grammars"]
    return grammar  # type: ignore[no-any-return]


def test_a_schema_goes_through_as_it_is_but_for_the_librarys_own_words() -> None:
    schema = {"type": "object", "x-guidance": {"lenient": True}}
    assert written(json=schema) == {"json_schema": {"type": "object"}}
    assert written(json=schema, disable_any_whitespace=True) == {
        "json_schema": {"type": "object", "x-guidance": {"whitespace_flexible": False}}
    }
    assert written(json_object=True, whitespace_pattern=" ?") == {
        "json_schema": {"type": "object", "x-guidance": {"whitespace_pattern": " ?"}}
    }
    assert written(json=True) == {"json_schema": True}


def test_gbnf_and_lark_are_told_apart_by_how_they_write_rules() -> None:
    assert written(grammar='start: "a"') == {"lark_grammar": 'start: "a"'}
    assert "start" in str(written(grammar='root ::= "a" | "b"')["lark_grammar"])
    with pytest.raises(RequestError, match="GBNF"):
        grammar_text(StructuredOutputsParams(grammar='root ::= "a'), lambda mark: None)


@given(st.text(max_size=8))
def test_any_text_can_be_quoted(text: str) -> None:
    matcher = COMPILER.matcher(StructuredOutputsParams(grammar=f"start: {lark_text(text)}"))
    assert all(matcher.consume_token(byte) for byte in text.encode())
    assert matcher.is_accepting()
    assert matcher.is_stopped() or not text


def _around(begin: str | None, **marks: int) -> str:
    form = StructuredOutputsParams(choice=["a"], reasoning_begin=begin, reasoning_end="</t>")
    around, inner = json.loads(grammar_text(form, lambda mark: marks.get(mark.strip("</>"))))["grammars"]
    assert inner == {"name": "form", "lark_grammar": 'start: "a"'}
    first: str = around["lark_grammar"].splitlines()[0]
    return first


def test_reasoning_stands_before_a_form_as_text_or_special_tokens() -> None:
    assert _around(None) == "start: (thought BLANKS?) @form"
    assert _around("<b>") == 'start: ("<b>" thought BLANKS?)? @form'
    assert _around("<b>", b=7) == "start: (<[7]> thought BLANKS?)? @form"
    assert _around("<b>", b=7, t=9) == "start: (<[7]> THOUGHT? <[9]> BLANKS?)? @form"
