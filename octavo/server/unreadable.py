"""What a client is told of a body that is not what an endpoint reads: the field, what it is, and what it must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.parameters import shown
from octavo.server.failures import ServerError

FORMS = {
    "prompt": "It must be a text, a list of texts, token ids, or a list of lists of token ids.",
    "stop": "It must be a text, or a list of texts.",
    "tool_choice": 'It must be none, auto, required, or {"type": "function", "function": {"name": ...}}.',
}
"""Fields that may be of several kinds, of which no single one is what was meant."""

NO_OBJECT = "The request body is no JSON object. Send one, with the header Content-Type: application/json."
UNREADABLE = "The request body cannot be read. Send JSON in UTF-8, with fewer levels and shorter numbers."


def refusal_of(errors: Sequence[Mapping[str, Any]]) -> ServerError:
    """The answer (400) to a body in which pydantic found these errors."""
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    if place and place[0] in ("body", "query", "path"):
        del place[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it ends too soon")
        return ServerError(400, f"The request body is no JSON: {reason} at character {'.'.join(place) or 0}.")
    if not place:
        return ServerError(400, NO_OBJECT)
    field = place[0]
    if first["type"] == "missing" and len(place) == 1:
        return ServerError(400, f"{field} is missing.", param=field)
    if field in FORMS and len(place) > 1:
        message = _said(field, errors, first) + FORMS[field]
    else:
        message = f"{'.'.join(place)} is {shown(first.get('input'))}. {first['msg']}."
    return ServerError(400, message, param=field)


def _said(field: str, errors: Sequence[Mapping[str, Any]], first: Mapping[str, Any]) -> str:
    """What such a field is: the value itself where an error speaks of the whole of it."""
    whole = next((error for error in errors if len([part for part in error["loc"] if part != "body"]) <= 2), first)
    return f"{field} is {shown(whole.get('input'))}. "
