from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.planning.picture import draw, write_picture
from tests.planning.build import GIB, planned


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
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_what_does_not_fit_is_drawn_and_says_so() -> None:
    text = draw(planned("Gemma-3-27b", GIB, max_model_len=131072))
    ET.fromstring(text)
    assert "DOES NOT FIT" in text
    ET.fromstring(draw(planned("Gemma-3-27b", 1, max_model_len=131072)))


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
