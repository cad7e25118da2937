"""Octavo beside another engine: the same weights, the same workload, run after run in turn.

    python -m benchmarks.compare --peer llamacpp --peer-python ENV/bin/python --workload w1.json --model demo --runs 5

Each run is a fresh process with a cold prefix cache and a warm disk; who goes first changes from round to round, so
that a machine that drifts favours nobody. Of each figure all runs, both medians and the ratio of the runs that followed
each other are printed; a ratio above 1 means that Octavo is faster, or smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import FIRST_TOKENS, agreement, as_fields, described, spread, table
from benchmarks.machine import in_line, machine
from benchmarks.processes import end_children_when_terminated
from benchmarks.sides import PEERS, Outcome, Setup, SideError, run_octavo, run_peer, time_torch_import
from benchmarks.weights import prepare
from octavo.cli.workload import load_workload
from octavo.config import parse_bytes, read_environment
from octavo.errors import OctavoError


def read_flags(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment made by benchmarks/peers/")
    parser.add_argument("--workload", type=Path, action="append", required=True, help="may be given several times")
    parser.add_argument("--model", default="demo", help="demo, demo-smollm2, or a folder made by benchmarks.weights")
    parser.add_argument("--precision", choices=("bf16", "packed"), default="bf16")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs that count")
    parser.add_argument("--warm-up", type=int, default=1, help="pairs before those, to warm the disk and fill caches")
    parser.add_argument("--kv-memory", type=parse_bytes, default=2**30, help="bytes of the KV cache, such as 1GiB")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--peer-dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="what the peer computes in: without bfloat16 instructions some are faster in float32, or know no other",
    )
    parser.add_argument("--octavo-arg", action="append", default=[], help="one more argument for octavo bench offline")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    given = parser.parse_args(arguments)
    if given.precision not in PEERS[given.peer][1]:
        parser.error(f"{given.peer} cannot read {given.precision} weights")
    if given.runs < 1:
        parser.error("--runs must be at least 1")
    return given


def weights_folder(model: str) -> Path:
    """A folder with all forms of the weights; those of a demo model are written once, into Octavo's cache folder."""
    return Path(model) if Path(model).is_dir() else prepare(model, read_environment().cache_dir / "benchmarks" / model)


def compare(given: argparse.Namespace, workload: Path, weights: Path) -> dict[str, Any]:
    """All runs of one workload. Raises `SideError` when a side fails."""
    setup = Setup(
        workload.resolve(), weights.resolve(), given.precision, given.kv_memory, given.threads, given.peer_dtype
    )
    ours: list[Outcome] = []
    theirs: list[Outcome] = []
    floors: list[float] = []
    for number in range(-given.warm_up, given.runs):
        sides = [
            (ours, lambda: run_octavo(setup, given.octavo_arg)),
            (theirs, lambda: run_peer(given.peer, given.peer_python, setup)),
        ]
        for kept, run in sides if number % 2 == 0 else reversed(sides):
            outcome = run()
            sys.stderr.write(f"{workload.name} run {number}: {outcome.engine} wall {outcome.wall_s:.3f} s\n")
            if number >= 0:
                kept.append(outcome)
        if number >= 0:
            floors.append(time_torch_import())
    return {
        "workload": load_workload(workload).name,
        "model": given.model,
        "precision": given.precision,
        "import_torch_s": spread(floors)._asdict(),
        **as_fields(ours, theirs),
        "text": _text(ours, theirs, floors),
    }


def _text(ours: Sequence[Outcome], theirs: Sequence[Outcome], floors: Sequence[float]) -> str:
    same = agreement(ours[-1], theirs[-1])
    after = spread([run.start_to_first_token_s - floor for run, floor in zip(ours, floors, strict=True)])
    lines = [described(ours[-1]), described(theirs[-1]), table(ours, theirs)]
    lines.append(
        f"of {same.requests} requests the first token is the same in {same.same_first_token}, the first {FIRST_TOKENS} "
        f"in {same.same_first_tokens}"
    )
    lines.append(
        f"import torch takes {spread(floors).median:.2f} s; octavo's first token comes {after.median:.2f} s "
        f"({after.lowest:.2f}..{after.highest:.2f}) later than that"
    )
    return "\n".join(lines)


def main() -> None:
    """Compare as the command line says, and print."""
    given = read_flags()
    end_children_when_terminated()
    try:
        for workload in given.workload:
            load_workload(workload)
        facts = machine()
        weights = weights_folder(given.model)
        if not given.json:
            print(in_line(facts))
        found = []
        for workload in given.workload:
            found.append(compare(given, workload, weights))
            if not given.json:
                print(f"\nworkload {found[-1]['workload']}, {given.model}, {given.precision}\n{found[-1]['text']}")
    except (OctavoError, SideError) as error:
        sys.exit(f"error: {error}")
    if given.json:
        print(json.dumps({"machine": facts, "comparisons": found}))


if __name__ == "__main__":
    main()
