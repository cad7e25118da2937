"""`python -m octavo` is the command line."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import octavo
from octavo import __main__


def test_python_m_octavo_answers() -> None:
    command = [sys.executable, "-m", "octavo", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"octavo {octavo.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [(["generate", "x"], 1), (["bench", "offline"], 1), (["plan", "demo"], 0), (["generate", "--help"], 0), ([], 0)],
)
def test_torch_is_read_ahead_for_what_computes(
    arguments: list[str], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []

    def run() -> None:
        raise SystemExit(5)

    monkeypatch.setattr(__main__, "read_ahead", lambda: read.append(True))
    monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
    monkeypatch.setattr("octavo.__main__.importlib.import_module", lambda name: SimpleNamespace(run=run))
    with pytest.raises(SystemExit):
        __main__.run()
    assert len(read) == reads
