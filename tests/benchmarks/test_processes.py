"""Fresh processes: what they say, what they held, and that none is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.machine import ROOT
from benchmarks.processes import family, peak_rss, run_process, run_shown

HOLDS = "import sys, time; held = bytearray(64 << 20); held[::4096] = b'x' * len(held[::4096]); time.sleep(0.4)"


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_output_code_and_time_of_a_process(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['A'], os.getcwd()); print('e', file=sys.stderr); sys.exit(3)"
    ended = run_process(_python(program), {"A": "b"}, tmp_path)
    assert (ended.code, ended.out, ended.err) == (3, f"b {tmp_path}\n", "e\n")
    assert 0 < ended.seconds < 30


@pytest.mark.slow
def test_memory_of_children_counts(tmp_path: Path) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"
    lone, parent = (run_process(_python(text), {}, tmp_path).peak_rss_bytes for text in (HOLDS, program))
    assert 64 << 20 < lone < parent


@pytest.mark.slow
def test_nothing_is_left_of_a_process_that_takes_too_long(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(subprocess.TimeoutExpired):
        run_process(_python(program), {}, tmp_path, timeout_s=3.0)
    assert _ends(int(note.read_text()))


@pytest.mark.slow
def test_nothing_is_left_when_a_comparison_is_terminated(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = (
        "import sys; from pathlib import Path\n"
        "from benchmarks.processes import end_children_when_terminated, run_process\n"
        "end_children_when_terminated()\n"
        f"run_process([sys.executable, '-c', {child!r}], {{}}, Path.cwd())"
    )
    with subprocess.Popen(_python(program), cwd=ROOT) as process:
        deadline = time.monotonic() + 30
        while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 143
    assert _ends(int(note.read_text()))


def _ends(pid: int) -> bool:
    """Whether the process is gone within some seconds."""
    deadline = time.monotonic() + 10
    while peak_rss(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return peak_rss(pid) == 0


def test_a_shown_process_is_interrupted_when_its_time_is_over(tmp_path: Path) -> None:
    assert run_shown(_python("raise SystemExit(4)"), tmp_path, 30) == 4
    mark = tmp_path / "ended"
    program = f"import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: open({str(mark)!r}, 'w')"
    assert run_shown(_python(program), tmp_path, 0.7) is None
    assert mark.exists()


def test_this_process_is_its_own_family() -> None:
    assert family(os.getpid())[0] == os.getpid()
    assert peak_rss(os.getpid()) > 1 << 20
    assert peak_rss(2**22 + 1) == 0
