"""A body that is not what an endpoint reads: what its sender is told. Over HTTP: tests/server/test_completions.py."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from octavo.server.bodies import ChatBody, CompletionBody, DetokenizeBody
from octavo.server.unreadable import FORMS, NO_OBJECT, refusal_of


def _refusal(kind: type[pydantic.BaseModel], given: Any) -> tuple[str, str | None]:
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate(given)
    found = refusal_of([{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()])
    assert found.status == 400
    return found.message, found.param


@pytest.mark.parametrize(
    ("kind", "given", "message", "field"),
    [
        (CompletionBody, {}, "prompt is missing.", "prompt"),
        (CompletionBody, [], NO_OBJECT, None),
        (CompletionBody, {"prompt": 5}, f"prompt is 5. {FORMS['prompt']}", "prompt"),
        (CompletionBody, {"prompt": [[1], "a"]}, f"prompt is [[1], 'a']. {FORMS['prompt']}", "prompt"),
        (CompletionBody, {"prompt": "a", "stop": [None]}, f"stop is [None]. {FORMS['stop']}", "stop"),
        (ChatBody, {"messages": [{}], "tool_choice": 5}, f"tool_choice is 5. {FORMS['tool_choice']}", "tool_choice"),
        (CompletionBody, {"prompt": "a", "n": 1.5}, "n is 1.5. Input should be a valid integer, got", "n"),
        (DetokenizeBody, {"tokens": [1, "x"]}, "tokens.1 is 'x'. Input should be a valid integer", "tokens"),
        (
            CompletionBody, {"prompt": "a", "stream_options": {"include_usage": "x"}},
            "stream_options.include_usage is 'x'. Input should be a valid boolean", "stream_options",
        ),
    ],
)  # fmt: skip
def test_the_field_what_it_is_and_what_it_must_be(
    kind: type[pydantic.BaseModel], given: Any, message: str, field: str | None
) -> None:
    said, param = _refusal(kind, given)
    assert said.startswith(message)
    assert param == field


def test_json_that_ends_too_soon_names_the_place_and_no_field() -> None:
    found = refusal_of([{"type": "json_invalid", "loc": ("body", 7), "msg": "JSON decode error", "ctx": {}}])
    assert (found.message, found.param) == ("The request body is no JSON: it ends too soon at character 7.", None)
