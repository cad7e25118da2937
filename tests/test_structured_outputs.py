"""The forms that outputs may be asked for in: what is read, and what is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from octavo.errors import RequestError
from octavo.request import SamplingParams
from octavo.structured_outputs import MAX_CHOICES, MAX_FORM_CHARS, StructuredOutputsParams, structured_outputs_from


@pytest.mark.parametrize("schema", [{"type": "string", "const": "é"}, True, '{"type": "string"}'])
def test_a_schema_is_kept_as_text(schema: Any) -> None:
    text = StructuredOutputsParams(json=schema).json
    assert text is not None
    assert json.loads(text) == (json.loads(schema) if isinstance(schema, str) else schema)


def deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "none of json"),
        ({"json": {}, "regex": "a"}, "json and regex at once"),
        ({"json": "{"}, "a JSON schema"),
        ({"json": "[]"}, "a JSON schema"),
        ({"json": '{"const": NaN}'}, "a JSON schema"),
        ({"json": {"const": float("nan")}}, "a JSON schema"),
        ({"json": {"const": object()}}, "a JSON schema"),
        ({"json": {"const": "\ud800"}}, "a JSON schema"),
        ({"json": deep(100_000)}, "a JSON schema"),
        ({"regex": ""}, "not empty"),
        ({"regex": 3}, "a text"),
        ({"regex": "\ud800"}, "a text"),
        ({"grammar": "a" * (MAX_FORM_CHARS + 1)}, "262,145"),
        ({"choice": []}, "1 to 10,000"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "1 to 10,000"),
        ({"choice": "yes"}, "a list of texts"),
        ({"choice": ["a", 1]}, "a list of texts"),
        ({"regex": "a", "disable_any_whitespace": True}, "speaks of JSON"),
        ({"choice": ["a"], "whitespace_pattern": " "}, "speaks of JSON"),
        ({"structural_tag": "x"}, "structural_tag is not supported"),
        ({"jsn": {}}, "has no field"),
    ],
)
def test_what_is_refused_says_why(fields: dict[str, Any], words: str) -> None:
    for make in (StructuredOutputsParams, lambda **given: SamplingParams(structured_outputs=given)):
        with pytest.raises(RequestError, match=r"[.?]$") as caught:
            make(**fields)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sampling_parameters_take_them_as_they_are_or_as_a_dict() -> None:
    form = StructuredOutputsParams(choice=["a", "b"])
    assert SamplingParams(structured_outputs=form).structured_outputs is form
    assert SamplingParams(structured_outputs={"choice": ("a", "b")}).structured_outputs == form
    assert SamplingParams().structured_outputs is None
    with pytest.raises(RequestError, match="StructuredOutputsParams, or a dict"):
        SamplingParams(structured_outputs="json")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        structured_outputs_from({1: 2})


def test_they_cross_a_process_and_are_equal_there() -> None:
    sampling = SamplingParams(structured_outputs={"json": {"type": "integer"}})
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=SamplingParams)
    assert decoded == sampling
    assert hash(decoded.structured_outputs) == hash(sampling.structured_outputs)
