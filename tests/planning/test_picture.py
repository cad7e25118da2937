from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.planning.picture import NARROW, WIDE, draw, write_picture
from tests.planning.build import GIB, planned

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("Gemma-3-27b", {}),
        ("Llama-3.1-8B", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        ("Qwen3-Next-80B-A3B", {}),
        ("DeepSeek-V3", {}),
        ("Llama-4-Scout", {"max_model_len": 65536}),
    ],
)
def test_a_picture_is_whole_and_shows_both_curves(model: str, more: dict[str, Any]) -> None:
    asked = planned(model, 24 * GIB, **{"max_model_len": 16384} | more)
    text = draw(asked)
    root = ET.fromstring(text)
    assert f"{asked.plan.figures.capacity_tokens:,} tokens of KV cache" in text
    assert len(list(root.iter(f"{SVG}polyline"))) == 4


def test_what_does_not_fit_is_drawn_and_says_so() -> None:
    text = draw(planned("Gemma-3-27b", GIB, max_model_len=131072))
    ET.fromstring(text)
    assert "DOES NOT FIT" in text
    ET.fromstring(draw(planned("Gemma-3-27b", 1, max_model_len=131072)))


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("model", ["Gemma-3-27b", "Qwen3-Next-80B-A3B", "Llama-4-Scout"])
def test_nothing_is_drawn_beyond_the_edges(model: str, width: int) -> None:
    """Letters count six tenths of their size each, which is more than these take."""
    for memory in (24 * GIB, GIB):
        root = ET.fromstring(draw(planned(model, memory, max_model_len=131072), width))
        height = float(root.attrib["height"])
        assert float(root.attrib["width"]) == width
        for part in root.iter(f"{SVG}rect"):
            if "y" in part.attrib and "x" in part.attrib and part.attrib.get("id") != "padding":
                assert float(part.attrib["x"]) + float(part.attrib["width"]) <= width
        for part in root.iter(f"{SVG}text"):
            size, anchor = float(part.attrib["font-size"]), part.attrib["text-anchor"]
            long = 0.6 * size * len(part.text or "")
            left = float(part.attrib["x"]) - {"start": 0, "middle": long / 2, "end": long}[anchor]
            assert left >= 0, part.text
            assert left + long <= width, part.text
            assert float(part.attrib["y"]) <= height


def test_a_page_has_a_picture_for_wide_windows_and_one_for_narrow_ones(tmp_path: Path) -> None:
    asked = planned("DeepSeek-V3", GIB, max_model_len=8192)
    write_picture(asked, tmp_path / "a.html", "")
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg ") == 2
    assert f"@media(max-width:{WIDE + 40}px)" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(set(ids)) == len(ids), "what is not shown lends nothing to what is"


def test_the_ending_says_how_it_is_written(tmp_path: Path) -> None:
    asked = planned("gpt-oss-20b", GIB, max_model_len=8192)
    for name in ("a.svg", "a.html"):
        write_picture(asked, tmp_path / name, "x < y")
    assert (tmp_path / "a.svg").read_text() == draw(asked)
    page = (tmp_path / "a.html").read_text()
    assert draw(asked) in page
    assert "x &lt; y" in page
    with pytest.raises(ConfigError, match=r"\.svg, \.png, \.html"):
        write_picture(asked, tmp_path / "a.jpg", "")
    with pytest.raises(ConfigError, match="there is no folder"):
        write_picture(asked, tmp_path / "absent" / "a.svg", "")


def test_a_png_is_a_png(tmp_path: Path) -> None:
    try:
        write_picture(planned("gpt-oss-20b", GIB, max_model_len=8192), tmp_path / "a.png", "")
    except ConfigError as error:
        assert "no fonts" in str(error)  # this system has none
        return
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_png_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ConfigError, match=r"octavo\[plot\]"):
        write_picture(planned("gpt-oss-20b", GIB, max_model_len=8192), tmp_path / "a.png", "")
