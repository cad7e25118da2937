from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import run_octavo
from tests.formats.published import CONFIGS


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(CONFIGS["Gemma-3-27b"]))
    return str(path)


def test_a_comparison_is_a_table_or_json(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    arguments = ["plan", model, "--kv-memory", "8GiB", "--compare", "tp=1,2,3", "--compare", "block-size=16,32"]
    said = run_octavo(monkeypatch, arguments)
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[:3] for line in lines[1:7]] == [
        ["1", "16", "NO"], ["1", "32", "NO"], ["2", "16", "yes"], ["2", "32", "yes"], ["3", "16", "refused"],
        ["3", "32", "refused"],
    ]  # fmt: skip
    assert "row 5: --tensor-parallel-size is 3" in said.out
    rows = run_octavo(monkeypatch, [*arguments, "--json"]).document["rows"]
    assert [row["values"]["tp"] for row in rows] == ["1", "1", "2", "2", "3", "3"]
    assert rows[2]["plan"]["fits"] is True
    assert rows[4]["plan"] is None


def test_nothing_that_fits_ends_with_2(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    assert run_octavo(monkeypatch, ["plan", model, "--kv-memory", "1GiB", "--compare", "tp=1,2"]).code == 2
    both = run_octavo(monkeypatch, ["plan", model, "--kv-memory", "1GiB", "--compare", "tp=1,2", "--plot", "x.svg"])
    assert both.code == 1
    assert "--plot shows one plan" in both.err


def test_an_explanation_follows_the_answer_and_a_picture_is_written(
    monkeypatch: pytest.MonkeyPatch, model: str, tmp_path: Path
) -> None:
    picture = tmp_path / "map.svg"
    arguments = ["plan", model, "--kv-memory", "24GiB", "--explain", "--plot", str(picture)]
    said = run_octavo(monkeypatch, arguments)
    assert said.code == 0
    assert "26 * 81 + 5 * 8192" in said.out
    assert picture.read_text().startswith("<svg")
    steps = run_octavo(monkeypatch, [*arguments, "--json"]).document["explanation"]
    assert {"name", "formula", "expression", "value"} == set(steps[0])
