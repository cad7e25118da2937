"""The command line as a whole: help, version, dispatch, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import octavo
from octavo.cli import COMMANDS
from tests.cli.terminal import run_octavo


def test_version_and_help_go_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_octavo(monkeypatch, ["--version"]) == (0, f"octavo {octavo.__version__}\n", "")
    said = run_octavo(monkeypatch, ["--help"])
    assert said.code == 0
    assert all(command in said.out for command in COMMANDS)


@pytest.mark.parametrize("arguments", [["generat"], ["--bogus"], ["generate", "--bogus"]])
def test_wrong_usage_is_exit_code_two_on_stderr(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    said = run_octavo(monkeypatch, arguments)
    assert (said.code, said.out) == (2, "")
    assert arguments[-1] in said.err


def test_help_loads_no_library_of_the_device_house() -> None:
    program = (
        "import sys; sys.argv = ['octavo', 'generate', '--help']\n"
        "from octavo.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
