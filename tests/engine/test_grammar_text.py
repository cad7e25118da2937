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
    (grammar,) = json.loads(grammar_text(StructuredOutputsParams(**form)))["grammars"]  # type: ignore[arg-type]
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
        grammar_text(StructuredOutputsParams(grammar='root ::= "a'))


@given(st.text(max_size=8))
def test_any_text_can_be_quoted(text: str) -> None:
    matcher = COMPILER.matcher(StructuredOutputsParams(grammar=f"start: {lark_text(text)}"))
    assert all(matcher.consume_token(byte) for byte in text.encode())
    assert matcher.is_accepting()
    assert matcher.is_stopped() or not text
