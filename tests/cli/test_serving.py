"""What `octavo serve` refuses before it starts anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.async_llm import AsyncLLM
from octavo.server import serving
from tests.cli.terminal import run_octavo


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server would have been told."""
    told: dict[str, Any] = {}

    async def serve(options: Any, settings: Any, **more: Any) -> None:
        told.update(options=options, settings=settings, **more)

    monkeypatch.setattr(serving, "serve", serve)
    return told


def test_flags_become_settings_and_options(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], tmp_path: Path
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ 1 }}")
    flags = [
        "--port",
        "99",
        "--max-num-seqs",
        "4",
        "--quantization",
        "int8",
        "--api-key",
        "a",
        "--api-key",
        "b",
        "--chat-template",
        str(template),
    ]
    assert (
        run_octavo(
            monkeypatch, ["serve", "demo", *flags, "--served-model-name", "x", "--tool-call-parser", "hermes"]
        ).code
        == 0
    )
    settings = told["settings"]
    assert (settings.port, settings.api_keys, settings.served_model_names) == (99, ("a", "b"), ("x",))
    assert settings.chat_template == "{{ 1 }}"
    assert (settings.tool_call_parser, settings.reasoning_parser) == ("hermes", "none")
    assert (told["options"]["model"], told["options"]["max_num_seqs"]) == ("demo", 4)
    assert told["options"]["quantization"] == "int8"
    AsyncLLM(**told["options"])


def test_keys_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "a,b")
    assert run_octavo(monkeypatch, ["serve", "--model", "demo"]).code == 0
    assert told["settings"].api_keys == ("a", "b")
    assert told["settings"].served_model_names == ("demo",)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host", "0.0.0.0"], "Anybody who can reach 0.0.0.0"),
        (["--trust-remote-code"], "--trust-remote-code: Python code"),
    ],
)
def test_what_is_unsafe_is_loud(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], flags: list[str], words: str
) -> None:
    said = run_octavo(monkeypatch, ["serve", "demo", *flags])
    assert said.code == 0
    assert words in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "No model is given"),
        (["demo", "--model", "other"], "Two models are given"),
        (["demo", "--log-format", "xml"], "--log-format is xml"),
        (["demo", "--api-key", ""], "An --api-key is empty"),
        (["demo", "--api-key", "a", "--api-key", " "], "An --api-key is empty"),
        (["demo", "--quantization", "int9"], "--quantization is int9"),
        (["demo", "--tool-call-parser", "xml"], "--tool-call-parser is xml"),
        (["demo", "--reasoning-parser", "on"], "--reasoning-parser is on"),
        (["demo", "--chat-template", "/nowhere/t"], "--chat-template /nowhere/t cannot be read"),
        (["demo", "--max-num-seqs", "0"], "--max-num-seqs is 0"),
    ],
)
def test_mistakes_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], arguments: list[str], words: str
) -> None:
    said = run_octavo(monkeypatch, ["serve", *arguments])
    assert said.code == 1
    assert words in said.err
    assert told == {}
