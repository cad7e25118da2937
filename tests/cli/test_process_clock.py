"""The process clock starts with the process, not with the import."""

from __future__ import annotations

import subprocess
import sys
import time

from octavo.cli import process_clock
from octavo.cli.process_clock import seconds_since_start


def test_it_runs_with_the_wall_clock() -> None:
    before, started = seconds_since_start(), time.perf_counter()
    time.sleep(0.05)
    assert abs((seconds_since_start() - before) - (time.perf_counter() - started)) < 0.03


def test_time_before_the_import_counts() -> None:
    program = (
        "import time; time.sleep(0.3)\n"
        "from octavo.cli.process_clock import seconds_since_start\n"
        "print(seconds_since_start())"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.3 <= float(done.stdout) <= time.perf_counter() - started + 0.05


def test_without_proc_it_counts_from_the_import(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(process_clock.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError()))
    assert 0 <= seconds_since_start() <= time.perf_counter() - process_clock._IMPORTED + 0.01
