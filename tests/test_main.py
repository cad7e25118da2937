"""`python -m octavo` is the command line."""

from __future__ import annotations

import subprocess
import sys

import octavo


def test_python_m_octavo_answers() -> None:
    command = [sys.executable, "-m", "octavo", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"octavo {octavo.__version__}\n"
