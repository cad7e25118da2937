"""Line charts with two logarithmic axes, as parts of an SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

GRID, INK, FAINT = "#dddddd", "#222222", "#666666"


class Line(NamedTuple):
    """One line of a chart; every number of it is above 0."""

    name: str
    colour: str
    points: Points
    is_dashed: bool = False


class Box(NamedTuple):
    """Where a chart lies in the picture."""

    left: float
    top: float
    width: float
    height: float


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    anchor: str = "start",
    colour: str = INK,
    weight: str = "normal",
) -> str:
    """One line of text."""
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(words)}</text>'


def chart(box: Box, title: str, x_label: str, y_label: str, lines: Sequence[Line], marked: float) -> list[str]:
    """The parts of a chart in `box`, with a vertical mark at x = `marked`."""
    left, right = box.left + 62, box.left + box.width - 12
    top, bottom = box.top + 52, box.top + box.height - 44
    x_axis = _Axis([x for line in lines for x, _ in line.points], left, right, base=2)
    y_axis = _Axis([y for line in lines for _, y in line.points], bottom, top, base=10)
    parts = [
        text(box.left, box.top + 14, title, size=14, weight="bold"),
        text(box.left, top - 12, y_label, colour=FAINT),
    ]
    for value in x_axis.ticks():
        x = x_axis.place(value)
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(text(x, bottom + 16, short(value, 1024), size=11, anchor="middle", colour=FAINT))
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(text(left - 6, y + 4, short(value, 1000), size=11, anchor="end", colour=FAINT))
    x = x_axis.place(marked)
    parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{FAINT}" stroke-dasharray="2 3"/>')
    parts.append(text(x - 4, bottom - 6, "this plan", size=10, anchor="end", colour=FAINT))
    parts.append(text((left + right) / 2, bottom + 34, x_label, anchor="middle", colour=FAINT))
    for index, line in enumerate(lines):
        places = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in line.points)
        dashes = ' stroke-dasharray="6 4"' if line.is_dashed else ""
        style = f'fill="none" stroke="{line.colour}" stroke-width="2.5"{dashes}'
        parts.append(f'<polyline points="{places}" {style}><title>{html.escape(line.name)}</title></polyline>')
        row = box.top + 14 + 18 * index
        parts.append(f'<line x1="{right - 150}" y1="{row - 4}" x2="{right - 120}" y2="{row - 4}" {style}/>')
        parts.append(text(right - 114, row, line.name))
    return parts


class _Axis:
    """A logarithmic axis from `start` to `stop` on the page. It spans at least one power of its base."""

    def __init__(self, values: Sequence[float], start: float, stop: float, *, base: int) -> None:
        self._base = base
        self._low = math.log(min(values), base)
        self._high = max(math.log(max(values), base), self._low + 1e-9)
        if base == 10 or self._high - self._low < 1:
            self._low, self._high = math.floor(self._low * 2) / 2, math.ceil(self._high * 2 + 1e-9) / 2
        self._start, self._stop = start, stop

    def place(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return self._start + share * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Powers of the base, every other one where there are many; in between where there are few."""
        spans = self._high - self._low
        powers = [float(self._base) ** power for power in range(math.floor(self._low), math.ceil(self._high) + 1)]
        if self._base == 10:
            steps = (1, 2, 5) if spans <= 2 else (1,)
            marks = [step * power for power in powers for step in steps]
        else:
            marks = powers[:: 1 + int(spans // 9)]
        edge = 1e-9
        return [mark for mark in marks if self._low - edge <= math.log(mark, self._base) <= self._high + edge]


def short(value: float, thousand: int) -> str:
    """`131072` is 128K in powers of 1024, `200000` is 200k in powers of 1000."""
    letters = "KMG" if thousand == 1024 else "kMG"
    for power in (3, 2, 1):
        if value >= thousand**power:
            return f"{value / thousand**power:.3g}{letters[power - 1]}"
    return f"{value:g}"
