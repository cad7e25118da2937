"""The arithmetic of a comparison: figures of each run, ratios of runs that followed each other, tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.sides import Outcome

FIRST_TOKENS = 8
"""Output tokens of each request that should agree where the weights do."""


class Figure(NamedTuple):
    """One number of a run."""

    unit: str
    more_is_better: bool
    of: Callable[[Outcome], float | None]
    """None where the workload has no such number."""
    scale: float = 1.0
    """What a person reads is the number times this."""


def _decode(run: Outcome) -> float | None:
    """Of a lone request: tokens after the first, over the time they took."""
    if len(run.outputs) != 1 or len(run.outputs[0]) < 2:
        return None
    return (len(run.outputs[0]) - 1) / (run.finished_s[0] - run.first_token_s[0])


def _output_rate(run: Outcome) -> float | None:
    """All output tokens over the time until the last one. A single token is a first one, not a rate."""
    num_tokens = sum(map(len, run.outputs))
    return num_tokens / run.wall_s if num_tokens > len(run.outputs) else None


FIGURES: dict[str, Figure] = {
    "decode": Figure("tok/s", True, _decode),  # noqa: FBT003 - a named tuple's fields
    "output": Figure("tok/s", True, _output_rate),  # noqa: FBT003
    "wall": Figure("s", False, lambda run: run.wall_s),  # noqa: FBT003
    "mean first token": Figure("s", False, lambda run: statistics.fmean(run.first_token_s)),  # noqa: FBT003
    "start to first token": Figure("s", False, lambda run: run.start_to_first_token_s),  # noqa: FBT003
    "peak RSS": Figure("MiB", False, lambda run: float(run.peak_rss_bytes), 2.0**-20),  # noqa: FBT003
}
"""Everything but "start to first token" and "peak RSS" is counted from handing in the requests."""


class Spread(NamedTuple):
    """What several runs gave."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(figure: Figure, ours: Outcome, theirs: Outcome) -> float | None:
    """How many times better `ours` is: above 1 is faster, or smaller."""
    mine, other = figure.of(ours), figure.of(theirs)
    if mine is None or other is None:
        return None
    return mine / other if figure.more_is_better else other / mine


def ratios(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> dict[str, Spread]:
    """Ratio of each figure over the pairs of runs that followed each other."""
    found = {}
    for name, figure in FIGURES.items():
        pairs = [ratio(figure, *pair) for pair in zip(ours, theirs, strict=True)]
        values = [value for value in pairs if value is not None]
        if values:
            found[name] = spread(values)
    return found


class Agreement(NamedTuple):
    """How far two sides chose the same tokens, in requests.

    Prompts of random tokens leave a model without much of a preference: where two words are nearly as likely, rounding
    decides, and from there on the outputs differ.
    """

    requests: int
    same_first_token: int
    same_first_tokens: int
    """All of the first `FIRST_TOKENS`."""


def agreement(ours: Outcome, theirs: Outcome) -> Agreement:
    """Compared request by request."""
    pairs = list(zip(ours.outputs, theirs.outputs, strict=True))
    return Agreement(
        requests=len(pairs),
        same_first_token=sum(a[:1] == b[:1] for a, b in pairs),
        same_first_tokens=sum(a[:FIRST_TOKENS] == b[:FIRST_TOKENS] for a, b in pairs),
    )


def table(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> str:
    """Every figure in a line: all runs of both sides, their medians, the ratio with its spread."""
    sides = [ours, theirs] if theirs else [ours]
    header = [
        "figure",
        *(f"{side[0].engine} (median: runs)" for side in sides),
        *(["ratio (least..most)"] * bool(theirs)),
    ]
    rows = [header]
    all_ratios = ratios(ours, theirs) if theirs else {}
    for name, figure in FIGURES.items():
        columns = [[value * figure.scale for run in side if (value := figure.of(run)) is not None] for side in sides]
        if not all(columns):
            continue
        cells = [f"{name}, {figure.unit}", *map(_cell, columns)]
        if name in all_ratios:
            middle, lowest, highest = all_ratios[name]
            cells.append(f"{middle:.2f} ({lowest:.2f}..{highest:.2f})")
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cell(values: Sequence[float]) -> str:
    return f"{_number(statistics.median(values))}: {' '.join(map(_number, values))}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def described(run: Outcome) -> str:
    """How a side was set up."""
    flags = ", ".join(f"{name}={value}" for name, value in run.flags.items())
    return f"{run.engine} {run.version}: {run.dtype}, {run.num_threads} threads, {flags}"


def as_fields(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "runs": {"octavo": [run._asdict() for run in ours], "peer": [run._asdict() for run in theirs]},
        "medians": {side: _medians(runs) for side, runs in (("octavo", ours), ("peer", theirs))},
        "ratios": {name: value._asdict() for name, value in ratios(ours, theirs).items()},
        "agreement": {**agreement(ours[-1], theirs[-1])._asdict(), "first_tokens": FIRST_TOKENS},
    }


def _medians(runs: Sequence[Outcome]) -> dict[str, float]:
    columns = {name: [figure.of(run) for run in runs] for name, figure in FIGURES.items()}
    return {
        name: statistics.median(value for value in values if value is not None)
        for name, values in columns.items()
        if None not in values
    }
