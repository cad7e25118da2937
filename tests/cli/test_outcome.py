"""Exceptions become exit codes; real bugs keep their traceback."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import typer

from octavo.cli.outcome import exit_codes
from octavo.errors import InvariantError, ModelFileError


def _end(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[int, str]:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(typer.Exit) as ended, exit_codes():
        raise error
    return ended.value.exit_code, stderr.getvalue()


def test_a_users_mistake_is_one_sentence_and_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModelFileError("x.gguf is cut off at byte 5.", remedy="Fetch it again.")
    assert _end(monkeypatch, error) == (1, "error: x.gguf is cut off at byte 5. Fetch it again.\n")


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _end(monkeypatch, KeyboardInterrupt()) == (130, "\ninterrupted\n")


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvariantError), exit_codes():
        raise InvariantError("two owners")


def test_doing_well_is_no_exit() -> None:
    with exit_codes():
        pass


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = (
        "import sys, typer\n"
        "from octavo.cli.outcome import exit_codes\n"
        "def talk():\n"
        "    with exit_codes():\n"
        "        while True: sys.stdout.write('text ' * 1000)\n"
        "typer.run(talk)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talker:
        assert talker.stdout is not None
        assert talker.stderr is not None
        assert talker.stdout.read(10)
        talker.stdout.close()
        assert (talker.wait(timeout=30), talker.stderr.read()) == (0, b"")
