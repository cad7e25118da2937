"""Flags are read as typer itself reads them, and what typer refuses is refused, in words of our own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
import typer

from octavo.cli import plain_values
from tests.cli.terminal import run_octavo

COMMANDS = {"generate": [], "bench": ["--workload", "x.json"], "eval": ["text.txt"], "plan": []}
VALUES = (
    "1",
    "0",
    "-3",
    "+5",
    "1.5",
    "-0.25",
    ".5",
    "1e3",
    "12k",
    "1GiB",
    "x",
    "",
    " 7 ",
    "007",
    "9" * 5000,
    "nan",
    "auto",
    "\u0663",
)


def command_of(name: str) -> Any:
    command = typer.main.get_command(importlib.import_module(f"octavo.cli.{name}").app)
    return next(iter(command.commands.values())) if hasattr(command, "commands") else command


def outcome(command: Any, args: list[str]) -> Any:
    try:
        with command.make_context(command.name, list(args)) as context:
            return {name: (type(value), value) for name, value in context.params.items()}
    except Exception as error:  # what is raised is compared, too
        return type(error).__name__


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_those_of_typer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [
        parameter.opts[0]
        for parameter in command_of(name).params
        if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
    ]
    assert len(flags) > 3
    cases = [[*COMMANDS[name]], *([*COMMANDS[name], f"{flag}={value}"] for flag in flags for value in VALUES)]
    found = [outcome(command_of(name), case) for case in cases]
    monkeypatch.setattr("octavo.cli.help_text.read_plainly", lambda parameters: None)
    expected = [outcome(command_of(name), case) for case in cases]
    assert [str(one) for one in found] == [str(one) for one in expected]


def test_a_wrong_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_octavo(monkeypatch, ["generate", "--max-num-seqs", "many", "x"])
    assert said.code == 2
    assert "--max-num-seqs" in said.err


def test_plain_values_need_no_pydantic() -> None:
    program = """
import sys
from octavo.cli import generation, main
generation.run = lambda given: print(given["max_tokens"], given["model"], "pydantic" in sys.modules)
sys.argv = ["octavo", "generate", "--max-tokens", "1k", "-t", "0.7", "--kv-memory", "1GiB", "-m", "demo", "--json", "x"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "1000 demo False\n", done.stderr


def test_a_typer_without_readers_is_left_alone() -> None:
    class Parameter:
        pass

    parameter = Parameter()
    plain_values.read_plainly([parameter])
    assert not vars(parameter)
