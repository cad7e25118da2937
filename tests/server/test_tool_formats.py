"""Which format a chat template uses, and ids of calls; what the formats read is in test_turn_parser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo.server.tool_formats import TOOL_FORMATS, find_tool_format


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("For each call return <tool_call>\n{...}</tool_call>", "hermes"),
        ("{{- '[TOOL_CALLS] [' }}", "mistral"),
        ("{{- '<|python_tag|>' + builtin }}", "llama3_json"),
        ("{{ message.content }}", None),
    ],
)
def test_a_template_tells_its_format(template: str, name: str | None) -> None:
    assert find_tool_format(template) == name


def test_ids_differ_and_mistrals_are_nine_letters_and_digits() -> None:
    for name, kind in TOOL_FORMATS.items():
        made = {kind([]).new_id() for _ in range(50)}
        assert len(made) == 50
        pattern = r"[A-Za-z0-9]{9}" if name == "mistral" else r"call_\w{8,}"
        assert all(re.fullmatch(pattern, one) for one in made)


def test_tools_without_a_name_are_passed_over() -> None:
    tools: list[Any] = [
        {"type": "function"},
        {"function": {"name": 3}},
        {"function": {"name": "look", "parameters": None}},
    ]
    assert TOOL_FORMATS["hermes"](tools).schemas == {"look": None}
