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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "error: The system refuses: No space left on device.\n"),
        (PermissionError(13, "Permission denied", "/x"), "error: The system refuses: Permission denied: /x.\n"),
        (MemoryError(), "error: The system has no more memory for this process.\n"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert _end(monkeypatch, error) == (1, message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("<&- >/dev/null", 1, "error: There is nothing to read: standard input is closed."),
        ("hi >&-", 1, "error: Standard output is closed."),
        ("<&- >&- 2>&-", 1, ""),
        ("--model /nowhere hi 2>&-", 1, ""),
        ("--model /nowhere --prompt-file / ", 1, "error: The file / cannot be read: Is a directory."),
    ],
)
def test_streams_that_are_closed_are_no_reason_for_a_traceback(redirection: str, code: int, said: str) -> None:
    command = f"{sys.executable} -m octavo generate {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


@pytest.mark.slow
def test_a_disk_that_is_full_is_one_sentence() -> None:
    program = (
        "import sys, typer\n"
        "from octavo.cli.outcome import exit_codes\n"
        "def talk():\n"
        "    with exit_codes():\n"
        "        sys.stdout.write('text \u00e9')\n"
        "typer.run(talk)\n"
    )
    command = f"PYTHONIOENCODING=ascii {sys.executable} -c '{program}'"
    command = command.replace("'text", '"text').replace("\u00e9'", '\u00e9"')
    full = subprocess.run(["bash", "-c", command + " >/dev/full"], capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr) == (1, "error: The system refuses: No space left on device.\n")
    spoken = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (spoken.returncode, spoken.stdout) == (0, "text \u00e9".encode())
