"""Compare Octavo with recorded answers of the reference engine.

    python -m tools.oracle [--cases FILE] [--traces FILE]

Either file alone runs its part alone; without any, both parts run on the files in tests/data/oracle. The exit status
is 0 only if nothing differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.oracle_planning import run_planning
from tools.oracle_traces import run_traces

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "oracle"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="oracle", description="Compare Octavo with recorded answers.")
    parser.add_argument("--cases", type=Path, help="planning cases (default: those in tests/data/oracle)")
    parser.add_argument("--traces", type=Path, help="runtime traces (default: those in tests/data/oracle)")
    chosen = parser.parse_args(arguments)
    cases, traces = chosen.cases, chosen.traces
    if cases is None and traces is None:
        cases, traces = DATA / "cases.json", DATA / "traces.json"
    for path in (cases, traces):
        if path is not None and not path.is_file():
            parser.error(f"there is no file {path}")
    differ = 0
    if cases is not None:
        differ += run_planning(cases)
    if traces is not None:
        differ += run_traces(traces)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
