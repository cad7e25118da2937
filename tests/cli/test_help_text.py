"""No name is cut from a help text, whatever the width of the terminal; options keep the titles they are under."""

from __future__ import annotations

import re

import pytest

from octavo.cli.help_text import PANEL_COLUMNS
from tests.cli.terminal import run_octavo


@pytest.mark.parametrize("command", [["generate"], ["eval", "perplexity"], ["bench", "offline"], ["plan"], ["serve"]])
def test_the_same_names_at_every_width(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    found = {}
    for columns in (40, 80, PANEL_COLUMNS - 1, PANEL_COLUMNS, 250):
        monkeypatch.setenv("COLUMNS", str(columns))
        said = run_octavo(monkeypatch, [*command, "--help"])
        assert said.code == 0
        assert "\u2026" not in said.out
        found[columns] = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", said.out))
        assert "KV cache" in said.out
    assert all(names >= found[250] for names in found.values())
    assert {"--num-gpu-blocks-override", "--kv-cache-memory-bytes"} <= found[80]
