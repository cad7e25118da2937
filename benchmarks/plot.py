"""Line charts side by side as an SVG: both axes logarithmic, so that a line that does not rise does not grow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 320, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 34, 12, 44
_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#566573")

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """One line of a chart. Lines of one family share a colour; at most six families."""

    family: str
    points: Points
    is_dashed: bool = False


class Panel(NamedTuple):
    """One chart; every number of it is above 0."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    """By the name that the legend gives it."""


def draw_panels(panels: Sequence[Panel]) -> str:
    """The SVG. A line of the same name looks alike in every panel."""
    named = {name: line for panel in panels for name, line in panel.lines.items()}
    families = list(dict.fromkeys(line.family for line in named.values()))
    styles = {name: _style(families.index(line.family), is_dashed=line.is_dashed) for name, line in named.items()}
    width, height = WIDTH * len(panels), HEIGHT + 18 * (1 + (len(named) - 1) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate({index * WIDTH} 0)">')
        parts += _panel(panel, styles)
        parts.append("</g>")
    for index, (name, style) in enumerate(styles.items()):
        x, y = _LEFT + index % 4 * (width - _LEFT) // 4, HEIGHT + 10 + 18 * (index // 4)
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _style(family: int, *, is_dashed: bool) -> str:
    dashes = ' stroke-dasharray="5 3"' if is_dashed else ""
    return f'stroke="{_COLOURS[family % len(_COLOURS)]}" stroke-width="1.8"{dashes}'


def _panel(panel: Panel, styles: Mapping[str, str]) -> list[str]:
    xs = [x for line in panel.lines.values() for x, _ in line.points]
    ys = [y for line in panel.lines.values() for _, y in line.points]
    x_axis, y_axis = _Axis(xs, _LEFT, WIDTH - _RIGHT), _Axis(ys, HEIGHT - _BOTTOM, _TOP)
    parts = [f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>']
    for value in x_axis.ticks():
        x = x_axis.place(value)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 14}" text-anchor="middle">{_short(value)}</text>')
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(panel.x_label)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 5}">{escape(panel.y_label)}</text>')
    for name, line in panel.lines.items():
        places = [f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in sorted(line.points)]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" {styles[name]}/>')
    return parts


class _Axis:
    """A logarithmic axis from `start` to `stop` on the page. It spans at least a factor of ten."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self._low = math.floor(math.log10(min(values)) * 2) / 2
        self._high = max(math.ceil(math.log10(max(values)) * 2) / 2, self._low + 1)
        self._start, self._stop = start, stop

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """The powers of ten on the axis, and where they are few their halves and fifths."""
        powers = [10.0**power for power in range(math.floor(self._low), math.floor(self._high) + 1)]
        steps = (1, 2, 5) if self._high - self._low < 2.5 else (1,)
        marks = [step * power for power in powers for step in steps]
        return [mark for mark in marks if self._low <= math.log10(mark) <= self._high]


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
