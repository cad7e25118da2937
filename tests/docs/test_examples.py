"""Every Python example in the documents runs, and prints what the document says it prints."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

import octavo
from tools.imports import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.model]

SOURCES = {
    "README.md": (ROOT / "README.md").read_text("utf-8"),
    "docs/plan.md": (ROOT / "docs" / "plan.md").read_text("utf-8"),
    "octavo.__doc__": "```python\n"
    + re.sub(r"^ {4}", "", (octavo.__doc__ or "").split("\n\n", 1)[1], flags=re.M).rsplit("\nThe names", 1)[0]
    + "```\n",
}
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```)?", re.DOTALL)
"""A Python example, and perhaps directly below it what it prints."""

EXAMPLES = [(name, match) for name, text in SOURCES.items() for match in EXAMPLE.finditer(text)]


@pytest.mark.parametrize(("name", "match"), EXAMPLES, ids=[f"{name}:{m.start()}" for name, m in EXAMPLES])
def test_an_example_runs_and_prints_what_is_shown(name: str, match: re.Match[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(match["code"], name, "exec"), {"__name__": "example"})
    if match["printed"] is not None:
        assert printed.getvalue() == match["printed"]
