"""The flags of `octavo chat`."""

from __future__ import annotations

import re

import pytest

from tests.cli.terminal import run_octavo


def test_help_tells_what_can_be_typed_within_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_octavo(monkeypatch, ["chat", "--help"])
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", said.out).split())
    assert said.code == 0
    for word in ("/reset", "/undo", "/system TEXT", "/exit", "--url", "Ctrl-C stops an answer"):
        assert word in text
