"""Text goes to stdout whole and in order, wherever the two streams lead."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from octavo.cli import live
from octavo.cli.live import Screen


class _Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def _streams(monkeypatch: pytest.MonkeyPatch, *, out: bool, err: bool) -> tuple[_Stream, _Stream]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stdout, stderr = _Stream(terminal=out), _Stream(terminal=err)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    return stdout, stderr


@pytest.mark.parametrize("err", [False, True])
def test_piped_text_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch, *, err: bool) -> None:
    stdout, _ = _streams(monkeypatch, out=False, err=err)
    screen = Screen(lambda: "status")
    with screen.running():
        for piece in ("one ", "two\n", "  [bold]x", "\n\n"):
            screen.write(piece)
    assert stdout.getvalue() == "one two\n  [bold]x\n\n"


def test_the_live_line_is_on_stderr_when_that_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, stderr = _streams(monkeypatch, out=False, err=True)
    with Screen(lambda: "half done").running():
        time.sleep(0.2)
    assert "half done" in stderr.getvalue()
    assert stdout.getvalue() == ""


def test_on_one_screen_text_stays_and_the_live_line_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, stderr = _streams(monkeypatch, out=True, err=True)
    screen = Screen(lambda: "half done")
    with screen.running():
        for piece in ("one ", "two\nthree", " four", "\n", "\n", "five " * 20):
            screen.write(piece)
            time.sleep(0.15)
    assert _screen(stdout.getvalue()) == ["one two", "three four", "", ("five " * 20).strip()]
    assert "half done" in stdout.getvalue()
    assert stderr.getvalue() == ""


def test_a_line_wider_than_the_screen_is_shown_whole_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, _ = _streams(monkeypatch, out=True, err=True)
    screen = Screen(lambda: "half done")
    with screen.running():
        screen.write("word " * 30 + "last")
        time.sleep(0.3)
        assert "last" in stdout.getvalue()


def test_a_long_paragraph_is_settled_at_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    _streams(monkeypatch, out=True, err=True)
    screen = Screen(lambda: "")
    with screen.running():
        for _ in range(400):
            screen.write("word ")
        assert len(screen._open) <= live.MAX_OPEN_LINES * 80 + 5


def test_without_a_terminal_a_plain_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stderr = _streams(monkeypatch, out=False, err=False)
    monkeypatch.setattr(live, "PLAIN_SECONDS", 0.01)
    screen = Screen(lambda: "half done")
    with screen.running():
        time.sleep(0.1)
        screen.write("text")
        lines = stderr.getvalue().splitlines()
        assert set(lines) == {"half done"}
        time.sleep(0.05)
    assert len(stderr.getvalue().splitlines()) <= len(lines) + 1, "text is progress enough"


def _screen(written: str) -> list[str]:
    """The lines that a terminal shows in the end, blank ones at the end left out."""
    lines, row = [""], 0
    for code, text in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", written):
        if code == "\n":
            row += 1
            lines.extend([""] * (row + 1 - len(lines)))
        elif code.endswith("A"):
            row -= int(code[2:-1] or 1)
        elif code == "\x1b[2K":
            lines[row] = ""
        elif text:
            lines[row] += text
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
