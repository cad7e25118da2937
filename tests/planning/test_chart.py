from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from octavo.planning.chart import Box, Line, chart, short


def drawn(*lines: Line, marked: float = 64) -> str:
    parts = chart(Box(0, 0, 500, 300), "A title", "x", "y", lines, marked)
    ET.fromstring(f"<svg>{''.join(parts)}</svg>")
    return "\n".join(parts)


def test_lines_stay_inside_their_box_and_are_named() -> None:
    text = drawn(Line("a < b", "#111111", [(16, 10), (1024, 500)]), Line("c", "#222222", [(16, 3), (1024, 4)], True))
    for points in re.findall(r'points="([^"]+)"', text):
        for place in points.split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= 500
            assert 0 <= y <= 300
    assert "a &lt; b" in text
    assert "this plan" in text
    assert text.count("stroke-dasharray") >= 2


def test_one_point_is_a_chart_too() -> None:
    drawn(Line("a", "#111111", [(16, 10)]), marked=16)


@pytest.mark.parametrize(
    ("value", "thousand", "expected"),
    [(131072, 1024, "128K"), (200000, 1000, "200k"), (16, 1024, "16"), (2_500_000, 1000, "2.5M")],
)
def test_large_numbers_are_short(value: float, thousand: int, expected: str) -> None:
    assert short(value, thousand) == expected
