"""Octavo's cache manager and scheduler alone, without a model, beside vLLM's cache manager where its Python is given.

    python -m benchmarks.control_plane [--peer-python ENV/bin/python] [--rounds 3] [--sections NAME ...]
                                       [--plot FILE.svg] [--quick] [--json]

Both engines are measured in turn, each time in a fresh process. Times are CPU seconds of one thread. `full` is one
group of full attention, `hybrid` full attention and a sliding window of 1,024 tokens; blocks have 16 tokens; a pool of
4,096 blocks is smaller than what the prompts need together, so there they evict each other. Hits are found by the same
rule, but vLLM keeps windowed blocks at the ends of prompts alone, Octavo all of them. Prompts have a second ratio where
vLLM's environment has xxHash, its fastest hash; its default is SHA-256.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import in_line, machine
from benchmarks.peers.manager_cases import FAST_HASH, PROMPT_TOKENS
from benchmarks.peers.run_report import MARK
from benchmarks.plot import Line, Panel, draw_panels
from benchmarks.processes import end_children_when_terminated, run_process
from benchmarks.sides import ROOT, SideError, peer_environment

TIMEOUT_S = 1800
SECTIONS = ("build", "prompts", "decode", "scheduler", "rank")
Key = tuple[str, str, int, int, str]
"""Section, kind of groups, blocks or requests, tokens or requests, name of the number."""


Ratio = tuple[float, float, float]
"""Theirs over ours, in rounds that followed each other: median, least, most."""


class Row(NamedTuple):
    """One number over all rounds: medians, and ratios."""

    key: Key
    ours: float
    theirs: float | None
    ratio: Ratio | None
    fast_ratio: Ratio | None
    """The same where they use their fastest hash."""


def measured(engine: str, command: Sequence[str], environment: dict[str, str]) -> dict[Key, float]:
    """What a fresh process of `engine` says. Raises `SideError` when it fails."""
    ended = run_process(command, environment, ROOT, TIMEOUT_S)
    lines = [line for line in ended.out.splitlines() if line.startswith(MARK)]
    if ended.code or not lines:
        raise SideError(f"{engine} ended with code {ended.code}:\n{(ended.err or ended.out)[-2000:]}")
    return flattened(json.loads(lines[-1]))


def flattened(line: dict[str, Any]) -> dict[Key, float]:
    """The numbers of a process's line by what they are of."""
    found: dict[Key, float] = {}
    for section in (*SECTIONS, FAST_HASH):
        for entry in line.get(section, []):
            kind, first, *rest = entry["case"]
            for name, value in entry.items():
                if name == "case":
                    continue
                for part, number in value.items() if isinstance(value, dict) else [("", value)]:
                    found[section, kind, first, rest[0] if rest else 0, f"{name} {part}".strip()] = number
    return found


def rows(ours: Sequence[dict[Key, float]], theirs: Sequence[dict[Key, float]]) -> list[Row]:
    """Every number that Octavo has, in its order."""
    made = []
    for key in ours[0]:
        mine = [numbers[key] for numbers in ours]
        other = [numbers[key] for numbers in theirs if key in numbers]
        fast = [
            numbers[FAST_HASH, *key[1:]]
            for numbers in theirs
            if key[0] == "prompts" and (FAST_HASH, *key[1:]) in numbers
        ]
        found = statistics.median(other) if other else None
        made.append(Row(key, statistics.median(mine), found, _ratio(mine, other), _ratio(mine, fast)))
    return made


def _ratio(mine: Sequence[float], other: Sequence[float]) -> Ratio | None:
    if not other:
        return None
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def table(found: Sequence[Row]) -> str:
    """The numbers for people."""
    lines = [
        f"{'case':<58} {'octavo':>12} {'a request':>10} {'vllm':>12}  {'ratio (least..most)':<22} with its fastest hash"
    ]
    for row in found:
        cells = [_value(row.key, row.ours), "" if row.theirs is None else _value(row.key, row.theirs)]
        ratios = [
            "" if each is None else "{:.2f} ({:.2f}..{:.2f})".format(*each) for each in (row.ratio, row.fast_ratio)
        ]
        own = f"{cells[0]:>12} {_each(row):>10} {cells[1]:>12}"
        lines.append(f"{_label(row.key):<58} {own}  {ratios[0]:<22} {ratios[1]}".rstrip())
    return "\n".join(lines)


def _label(key: Key) -> str:
    section, kind, first, second, name = key
    of = {
        "build": f"build {first:,} blocks",
        "prompts": f"prompt of {second:,}, pool {first:,}",
        "decode": f"decode step of {second:,}, pool {first:,}",
        "scheduler": f"scheduler step of {first:,}",
        "rank": f"rank's bookkeeping of {first:,}",
    }[section]
    return f"{of}, {kind}: {name}"


def _each(row: Row) -> str:
    """Octavo's time for each of the requests of a step."""
    section, _, first, second, _ = row.key
    if section in ("build", "prompts"):
        return ""
    return f"{1e6 * row.ours / (second or first):.2f} us"


def _value(key: Key, value: float) -> str:
    if key[4] == "bytes":
        return f"{value / 1e6:.2f} MB"
    return f"{1e3 * value:.3f} ms" if value >= 1e-3 else f"{1e6 * value:.2f} us"


def panels(found: Sequence[Row]) -> list[Panel]:
    """How the numbers grow: with the pool, with the prompt, with the batch."""
    pool = [row for row in found if row.key[0] == "prompts" and row.key[3] == PROMPT_TOKENS]
    length = [row for row in found if row.key[0] == "prompts" and row.key[2] == 65_536]
    batch = [row for row in found if row.key[0] == "decode" and row.key[2] == 131_072]
    return [
        Panel("A prompt of 8,192 tokens, by pool", "blocks of the pool", "us", _lines(pool, 2, ("cold", "hit"))),
        Panel("A prompt, by length", "tokens of the prompt", "us", _lines(length, 3, ("cold", "hit"))),
        Panel("A decode step, by batch", "requests", "us a step", _lines(batch, 3, ("",))),
    ]


def _lines(found: Sequence[Row], place: int, states: Sequence[str]) -> dict[str, Line]:
    """Points (x, microseconds) of each line; x is `key[place]`."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in found:
        state, _, part = row.key[4].rpartition(" ")
        if part != "total" or state not in states:
            continue
        for engine, value in (("octavo", row.ours), ("vllm", row.theirs)):
            if value is not None:
                points.setdefault((f"{engine} {row.key[1]}", state), []).append((float(row.key[place]), 1e6 * value))
    return {
        f"{family} {state}".strip(): Line(family, sorted(line), is_dashed=state == "hit")
        for (family, state), line in points.items()
    }


def main() -> None:
    """Measure as the command line says, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, help="of an environment made by benchmarks/peers/vllm.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw how the numbers grow")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="what to measure")
    given = parser.parse_args()
    end_children_when_terminated()
    options = [*(["--quick"] * given.quick), "--sections", *given.sections]
    if "prompts" in given.sections:
        options.append(FAST_HASH)
    ours, theirs = [], []
    facts = machine()
    try:
        for _ in range(given.rounds):
            command = [sys.executable, "-m", "benchmarks.manager_octavo", *options]
            ours.append(measured("octavo", command, dict(os.environ)))
            if given.peer_python is not None:
                command = [str(given.peer_python), "-m", "benchmarks.peers.manager_vllm", *options]
                theirs.append(measured("vllm", command, peer_environment("vllm", given.peer_python, 1)))
    except SideError as error:
        sys.exit(f"error: {error}")
    found = rows(ours, theirs)
    if given.plot is not None:
        given.plot.write_text(draw_panels(panels(found)), encoding="utf-8")
    if given.json:
        print(json.dumps({"machine": facts, "rounds": given.rounds, "rows": [row._asdict() for row in found]}))
    else:
        print(in_line(facts))
        print(table(found))


if __name__ == "__main__":
    main()
