"""Time since this process was started: what a person at the terminal has waited."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.perf_counter()


def seconds_since_start() -> float:
    """Seconds since the operating system started this process, to about 10 ms.

    Where the system does not tell (no /proc), seconds since this module was imported.
    """
    try:
        # The command's name, in parentheses, may hold spaces: fields are counted from behind it. starttime is field 22.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.perf_counter() - _IMPORTED
