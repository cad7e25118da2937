from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _run(program: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, env=environment
    )


def test_what_is_left_to_do_is_done() -> None:
    program = """
import atexit, sys, threading, time
from octavo.cli.process_end import end_process

class Told:
    def __del__(self):
        print("taken apart")

told = Told()
told.itself = told
atexit.register(lambda: print("registered"))
threading.Thread(target=lambda: (time.sleep(0.2), print("waited for"))).start()
threading.Thread(target=lambda: (time.sleep(60), print("never")), daemon=True).start()
sys.stderr.write("said")
end_process(7)
"""
    done = _run(program)
    assert (done.returncode, done.stdout, done.stderr) == (7, "waited for\nregistered\n", "said")


def test_output_that_cannot_be_written_is_told_as_python_does() -> None:
    program = """
import os, sys
from octavo.cli.process_end import end_process
print("lost")
os.close(1)
end_process(0)
"""
    done = _run(program)
    assert done.returncode == 120
    assert "Bad file descriptor" in done.stderr


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("SystemExit(3)", 3, ""),
        ("SystemExit", 0, ""),
        ("SystemExit('no')", 1, "no\n"),
        ("KeyError(1)", 1, "KeyError: 1\n"),
    ],
)
def test_a_command_ends_as_python_would(raised: str, code: int, said: str) -> None:
    program = f"""
from octavo import cli

def app(**_):
    print("a result")
    raise {raised}

cli.app = app
cli.run()
"""
    done = _run(program)
    assert (done.returncode, done.stdout) == (code, "a result\n")
    assert done.stderr.endswith(said)
    assert bool(done.stderr) == bool(said)
