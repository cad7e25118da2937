"""What form a client wants its output in: `response_format`, vLLM's `structured_outputs`, a forced tool call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.errors import RequestError
from octavo.server.failures import ServerError
from octavo.structured_outputs import StructuredOutputsParams

KINDS = ("text", "json_object", "json_schema")


def wanted_form(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> StructuredOutputsParams | None:
    """The form that these two fields of a body ask for; None for any text.

    Raises `ServerError` (400) for a format that is none, and for two forms at once; `RequestError` as
    `StructuredOutputsParams`.
    """
    form = _of_response_format(response_format or {})
    if structured_outputs is None:
        return form
    if form is not None:
        raise ServerError(
            400,
            "response_format and structured_outputs both ask for a form. Send one of them.",
            param="response_format",
        )
    try:
        return StructuredOutputsParams(**structured_outputs)
    except RequestError as error:
        fact = error.fact.replace("StructuredOutputsParams", "structured_outputs")
        inner = error.parameter not in (None, "structured_outputs")
        fact = f"structured_outputs.{fact}" if inner else fact
        raise RequestError(fact, remedy=error.remedy, parameter="structured_outputs") from None


def _of_response_format(response_format: Mapping[str, Any]) -> StructuredOutputsParams | None:
    kind = response_format.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind != "json_schema":
        raise ServerError(
            400, f"response_format has the type {kind!r:.60}; known are {', '.join(KINDS)}.", param="response_format"
        )
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping | bool):
        raise ServerError(
            400,
            'response_format has no schema: {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}.',
            param="response_format",
        )
    form: dict[str, Any] = {"json": schema}
    try:
        return StructuredOutputsParams(**form)
    except RequestError as error:
        fact = error.fact.replace("json is", "The schema in response_format is", 1)
        raise RequestError(fact, remedy=error.remedy, parameter="response_format") from None


def forced_call(
    schemas: Mapping[str, Any], tool_choice: str | Mapping[str, Any], around: tuple[str, str]
) -> StructuredOutputsParams:
    """The form of an answer that is one call of a tool: a JSON object with `name` and `arguments` between two texts.

    Parameters:
        schemas: each tool's parameters, by its name; None takes any object.
        tool_choice: `required` for any of them, or `{"type": "function", "function": {"name": ...}}`.
        around: what the model writes before and after a call, in the words of a Lark grammar: quoted texts, `<[id]>`
            for a special token, or nothing.

    Raises `ServerError` (400) where there is no such tool.
    """
    known = dict(schemas)
    if isinstance(tool_choice, Mapping):
        chosen = tool_choice.get("function")
        name = chosen.get("name") if isinstance(chosen, Mapping) else None
        known = {key: schema for key, schema in known.items() if key == name}
    if not known:
        raise ServerError(400, f"tool_choice is {tool_choice!r:.80}, and tools has no such tool.", param="tool_choice")
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in known.items()
    ]
    rule = " ".join(part for part in (around[0], "call", around[1]) if part)
    return StructuredOutputsParams(grammar=f"start: {rule}\ncall: %json {json.dumps({'anyOf': calls})}")
