"""Running the command line in this process, with the fake model, and reading what it says."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from octavo import cli


class Said(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def run_octavo(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], stdin: str = "") -> Said:
    """Run `octavo ARGUMENTS` with `stdin` piped in."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return Said(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
