"""What `octavo bench serve` says of a run: percentiles of each latency, rates, goodput; as text, JSON and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.cli.load_client import Sent
from octavo.cli.text_table import table
from octavo.errors import ConfigError

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between pieces of a stream",
    "e2el": "end-to-end latency",
}
"""The names that vLLM's benchmark has for them."""

_COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad")


def samples(sent: Sequence[Sent]) -> dict[str, list[float]]:
    """Milliseconds, of each metric, of all whole answers."""
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for one in sent:
        if one.error or not one.token_times:
            continue
        first, last = one.token_times[0], one.token_times[-1]
        found["ttft"].append(1000 * (first - one.started))
        found["e2el"].append(1000 * (last - one.started))
        if one.num_output_tokens > 1:
            found["tpot"].append(1000 * (last - first) / (one.num_output_tokens - 1))
        found["itl"] += [1000 * (b - a) for a, b in zip(one.token_times[:-1], one.token_times[1:], strict=True)]
    return found


def report(
    sent: Sequence[Sent], *, percentiles: Sequence[float], goals: Mapping[str, float], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of a run. `goals` are milliseconds by metric: goodput counts the requests that keep all of them."""
    whole = [one for one in sent if not one.error]
    duration = max((one.ended for one in sent), default=0.0) - min((one.started for one in sent), default=0.0)
    per_second = 1 / duration if duration else 0.0
    found = samples(sent)
    document: dict[str, Any] = {
        **settings,
        "duration_s": duration,
        "completed": len(whole),
        "failed": len(sent) - len(whole),
        "errors": sorted({one.error for one in sent if one.error})[:5],
        "total_input_tokens": sum(one.num_prompt_tokens for one in whole),
        "total_output_tokens": sum(one.num_output_tokens for one in whole),
        "cached_tokens": sum(one.num_cached_tokens for one in whole),
    }
    document |= {
        "request_throughput": len(whole) * per_second,
        "output_throughput": document["total_output_tokens"] * per_second,
        "total_token_throughput": (document["total_input_tokens"] + document["total_output_tokens"]) * per_second,
    }
    if goals:
        kept = sum(_keeps(one, goals) for one in whole)
        document["request_goodput"] = kept * per_second
    for name, values in found.items():
        document[name] = _spread(values, percentiles)
    return document


def _keeps(one: Sent, goals: Mapping[str, float]) -> bool:
    own = samples([one])
    return all(max(own[name], default=0.0) <= most for name, most in goals.items())


def _spread(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    array = np.asarray(values)
    named = {f"p{percentile:g}_ms": float(np.percentile(array, percentile)) for percentile in percentiles}
    return {"mean_ms": float(array.mean()), "std_ms": float(array.std()), **named}


def in_lines(document: Mapping[str, Any]) -> str:
    """The document for people."""
    rows = [
        ["requests", f"{document['completed']} done, {document['failed']} failed, {document['duration_s']:.2f} s"],
        ["requests/s", f"{document['request_throughput']:.2f}"],
        ["output tok/s", f"{document['output_throughput']:.1f}"],
        ["all tok/s", f"{document['total_token_throughput']:.1f}"],
        ["input tokens", f"{document['total_input_tokens']:,}, {document['cached_tokens']:,} of them cached"],
        ["output tokens", f"{document['total_output_tokens']:,}"],
    ]
    if "request_goodput" in document:
        rows.append(["goodput, req/s", f"{document['request_goodput']:.2f}"])
    shown = {name: document[name] for name in METRICS if document.get(name)}
    text = "\n".join(f"  {name.ljust(16)}{value}" for name, value in rows)
    if shown:
        names = list(next(iter(shown.values())))
        head = ["ms", *(name.removesuffix("_ms") for name in names)]
        lines = [[f"{metric} ({METRICS[metric]})", *(f"{values[name]:.2f}" for name in names)]
                 for metric, values in shown.items()]  # fmt: skip
        text += "\n\n" + table([head, *lines])
    return text + "".join(f"\n  failed: {error}" for error in document["errors"]) + "\n"


def write_plot(sent: Sequence[Sent], path: Path) -> None:
    """How each latency is distributed, as an SVG. Raises `ConfigError` for another ending."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--plot is {path}.", remedy="Let its name end in .svg")
    panels = [(name, sorted(values)) for name, values in samples(sent).items() if values]
    width, height, gap = 520, 260, 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{2 * height}" '
        f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, (name, values) in enumerate(panels):
        left, top = (index % 2) * width + gap + 10, (index // 2) * height + gap
        parts += _panel(name, values, _COLOURS[index], (left, top, width - 2 * gap, height - 2 * gap))
    path.write_text("\n".join([*parts, "</svg>\n"]), "utf-8")


def _panel(name: str, values: Sequence[float], colour: str, box: tuple[int, int, int, int]) -> list[str]:
    """The share of `values` (in rising order) that is at most so many milliseconds."""
    left, top, width, height = box
    most = values[-1] or 1.0
    x: Callable[[float], float] = lambda value: left + width * value / most  # noqa: E731
    y: Callable[[float], float] = lambda share: top + height * (1 - share)  # noqa: E731
    step = max(1, len(values) // 500)
    places = [(x(value), y((index + 1) / len(values))) for index, value in enumerate(values)][::step]
    places = [(left, y(0)), *places, (x(most), y(1))]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    parts = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{name}: {METRICS[name]}, ms</text>']
    for share in (0, 0.5, 0.9, 0.99, 1):
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#ddd"/>')
        if share not in (0.99,):
            parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:g}</text>')
    for part in range(5):
        value = most * part / 4
        parts.append(f'<text x="{x(value):.1f}" y="{top + height + 16}" text-anchor="middle">{value:.4g}</text>')
    return [*parts, f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']
