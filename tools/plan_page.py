"""The answers of `octavo plan` in docs/plan.md, made by running the commands that stand there."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import octavo.cli
from tools.imports import ROOT

PICTURES = {"plan-gemma-3-27b.svg": "octavo plan docs/examples/gemma-3-27b.json --kv-memory 24GiB --plot"}
"""Picture in docs/ -> the command that draws it, but for the file's name."""

COMMANDS = {
    "plan-fits": "octavo plan docs/examples/gemma-3-27b.json --kv-memory 24GiB --lengths 8K,32K",
    "plan-short": "octavo plan docs/examples/gemma-3-27b.json --kv-memory 4GiB",
    "plan-machine": "octavo plan docs/examples/llama-3.1-70b.json --gpu h200x8",
    "plan-compare": "octavo plan docs/examples/gemma-3-27b.json --gpu rtx-4090x4 --compare kv-dtype=auto,fp8 "
    "--compare max-len=32K,128K",
    "plan-json": "octavo plan docs/examples/small-hybrid.json --kv-memory 1MiB --max-model-len 1024 --json",
}
"""Generated part -> the command whose answer it is."""


def answers() -> dict[str, Callable[[], str]]:
    """Generated part -> its text: the command and what it prints."""
    return {name: lambda command=command: _answer(command) for name, command in COMMANDS.items()}  # type: ignore[misc]


def pictures() -> dict[Path, str]:
    """The pictures of the page, as they should be now."""
    drawn = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in PICTURES.items():
            run(f"{command} {folder}/{name}")
            drawn[ROOT / "docs" / name] = (Path(folder) / name).read_text("utf-8")
    return drawn


def _answer(command: str) -> str:
    return f"```text\n$ {command}\n{run(command)}```\n"


def run(command: str) -> str:
    """What `command` prints, run in this process from the root of the repository."""
    printed, argv = io.StringIO(), sys.argv
    sys.argv = shlex.split(command)
    try:
        with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT), contextlib.suppress(SystemExit):
            octavo.cli.main()
    finally:
        sys.argv = argv
    return printed.getvalue()
