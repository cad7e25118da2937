"""What `make bench` runs: the measurements that take minutes, not hours.

    python -m benchmarks.quick [--peers FOLDER] [--workloads FOLDER] [--seconds 540]

First the control plane, then Octavo alone on both demo models, then Octavo beside every peer whose environment is in
FOLDER (`FOLDER/llamacpp`, `FOLDER/vllm` and so on, made by benchmarks/peers/). What no longer fits into the time is
named and left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import in_line, machine
from benchmarks.processes import GRACE_SECONDS, run_shown
from benchmarks.sides import PEERS, ROOT
from benchmarks.workloads import WORKLOADS, write_workloads

MODELS = ("demo-smollm2", "demo")
ALONE = ("w1", "w2", "w3", "w5")
BESIDE = ("w1", "w2", "w5")
SLOWEST_LAST = ("llamacpp", "openvino", "transformers", "vllm")


class Job(NamedTuple):
    """One measurement."""

    title: str
    command: list[str]
    at_least_s: float
    """Left out when less time than this is left."""


def jobs(peers: Path | None, workloads: dict[str, Path]) -> list[Job]:
    """Everything there is to do, the most telling first."""
    pythons = {name: peers / name / "bin" / "python" for name in SLOWEST_LAST} if peers is not None else {}
    found = {name: python for name, python in pythons.items() if python.exists()}
    control = _module("control_plane", "--quick", "--rounds", "2")
    if "vllm" in found:
        control += ["--peer-python", str(found["vllm"])]
    made = [Job("control plane", control, 0)]
    for model in MODELS:
        for name in ALONE:
            command = [sys.executable, "-m", "octavo", "bench", "offline", "--kv-memory", "1GiB"]
            made.append(Job(f"{name}, {model}", [*command, "--model", model, "--workload", str(workloads[name])], 30))
    for peer, python in found.items():
        for model in MODELS:
            for name in BESIDE:
                command = _module("compare", "--peer", peer, "--peer-python", str(python), "--model", model)
                command += ["--workload", str(workloads[name]), "--runs", "1", "--warm-up", "0"]
                made.append(Job(f"{name}, {model}, beside {peer}", command, 120 if peer == "vllm" else 60))
    return made


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{name}", *arguments]


def run_jobs(todo: Sequence[Job], seconds: float) -> list[str]:
    """Run what fits into `seconds`, and print as it comes; what failed or was left out."""
    deadline = time.monotonic() + seconds
    missing = []
    for job in todo:
        left = deadline - time.monotonic()
        if left < job.at_least_s:
            missing.append(f"left out: {job.title}")
            continue
        print(f"\n--- {job.title}", flush=True)
        code = run_shown(job.command, ROOT, max(left, 1) + GRACE_SECONDS)
        if code is None:
            missing.append(f"not done in time: {job.title}")
        elif code:
            missing.append(f"failed: {job.title}")
    return missing


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="a folder of environments: " + ", ".join(PEERS))
    parser.add_argument("--workloads", type=Path, help="a folder of w1.json to w5.json; by default they are drawn anew")
    parser.add_argument("--seconds", type=float, default=540)
    given = parser.parse_args()
    print(in_line(machine()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        workloads = write_workloads(Path(folder))
        if given.workloads is not None:
            workloads = {name: (given.workloads / f"{name}.json").resolve() for name in WORKLOADS}
        missing = run_jobs(jobs(given.peers, workloads), given.seconds)
    if missing:
        print("\n" + "\n".join(missing))
    if any(line.startswith("failed") for line in missing):
        sys.exit(1)


if __name__ == "__main__":
    main()
