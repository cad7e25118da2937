"""The control plane's measurements: run small on Octavo's manager, laid out as rows, drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import control_plane
from benchmarks.control_plane import flattened, panels, rows, table
from benchmarks.manager_octavo import OctavoDriver, measure_rank, measure_scheduler
from benchmarks.peers import manager_cases
from benchmarks.peers.manager_cases import FAST_HASH, measure_build, measure_decode, measure_prompts, prompts
from benchmarks.plot import draw_panels
from benchmarks.processes import Ended

BUILD = {"case": ["full", 4096], "seconds": 0.001, "bytes": 2_000_000.0}
PROMPTS = {"case": ["full", 65_536, 8192], "cold": {"total": 2e-3}, "hit": {"total": 1e-4}}
LINE: dict[str, Any] = {
    "engine": "octavo",
    "build": [BUILD],
    "prompts": [PROMPTS, {**PROMPTS, "case": ["full", 65_536, 512]}],
    "decode": [{"case": ["full", 131_072, 1], "total": 1e-6}, {"case": ["full", 131_072, 256], "total": 2e-4}],
    "rank": [{"case": ["full", 256], "total": 1e-4}],
}


@pytest.mark.parametrize(("kind", "too_small"), [("full", 320), ("hybrid", 640)])
def test_a_manager_is_measured_with_hits_that_are_checked(
    kind: str, too_small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_cases, "NUM_PROMPTS", 6)
    monkeypatch.setattr(manager_cases, "DECODE_STEPS", 16)
    # The tests' own heap is large, and nothing is measured here.
    monkeypatch.setattr(manager_cases.gc, "collect", lambda: 0)
    driver = OctavoDriver()
    assert measure_build(driver, kind, 5000)["bytes"] < 5000 * 100
    for num_blocks in (too_small, 5000):  # 6 prompts of 64 blocks a group: the first are evicted
        found = measure_prompts(driver, kind, num_blocks, 1024)
        assert set(found) == {"cold", "hit"}
        assert all(value > 0 for phases in found.values() for value in phases.values())
    assert measure_decode(driver, kind, 5000, 3)["total"] > 0
    assert measure_scheduler(driver, kind, 4)["total"] > 0
    assert measure_rank(driver, kind, 4)["total"] > 0


def test_a_driver_that_finds_the_wrong_hit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_cases, "NUM_PROMPTS", 2)
    driver = OctavoDriver()
    monkeypatch.setattr(driver, "num_hit_tokens", lambda found: 16)
    with pytest.raises(SystemExit, match="16 tokens hit of 0"):
        measure_prompts(driver, "full", 100, 64)


def test_a_pool_without_room_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="no room for 3 requests in 40 blocks"):
        measure_decode(OctavoDriver(), "full", 40, 3)


def test_prompts_are_the_same_in_every_process() -> None:
    assert prompts(2, 3) == prompts(2, 3)
    assert prompts(2, 3)[0] != prompts(2, 3)[1]


def test_rows_have_medians_and_ratios_of_rounds_that_followed_each_other() -> None:
    def at(seconds: float) -> dict[Any, float]:
        return flattened({**LINE, "build": [{**BUILD, "seconds": seconds}]})

    found = rows([at(1.0), at(2.0), at(4.0)], [at(10.0), at(40.0), at(40.0)])
    build = next(row for row in found if row.key == ("build", "full", 4096, 0, "seconds"))
    assert (build.ours, build.theirs, build.ratio) == (2.0, 40.0, (10.0, 10.0, 20.0))
    alone = rows([at(1.0)], [])
    assert all(row.theirs is None and row.ratio is None for row in alone)
    lines = table(found).splitlines()
    assert lines[1].split() == ["build", "4,096", "blocks,", "full:", "seconds", "2000.000", "ms", "40000.000", "ms",
                                "10.00", "(10.00..20.00)"]  # fmt: skip
    assert "2.00 MB" in lines[2]


def test_prompts_are_compared_under_the_fastest_hash_too() -> None:
    fast = {**LINE, FAST_HASH: [{**PROMPTS, "cold": {"total": 1e-3}}]}
    found = rows([flattened(LINE)] * 2, [flattened(fast)] * 2)
    ratios = {row.key: row.fast_ratio for row in found}
    assert ratios["prompts", "full", 65_536, 8192, "cold total"] == (0.5, 0.5, 0.5)
    assert ratios["prompts", "full", 65_536, 8192, "hit total"] == (1.0, 1.0, 1.0)
    assert ratios["prompts", "full", 65_536, 512, "cold total"] is None
    assert "0.50 (0.50..0.50)" in table(found)


def test_a_step_is_told_by_request() -> None:
    lines = table(rows([flattened(LINE)], [])).splitlines()
    assert lines[-1].split()[-4:] == ["100.00", "us", "0.39", "us"]
    assert lines[-2].split()[-4:] == ["200.00", "us", "0.78", "us"]


def test_what_grows_is_drawn(tmp_path: Path) -> None:
    found = rows([flattened(LINE)], [flattened(LINE)])
    drawn = panels(found)
    assert [sorted(panel.lines) for panel in drawn][2] == ["octavo full", "vllm full"]
    assert drawn[1].lines["octavo full cold"].points == [(512.0, 2000.0), (8192.0, 2000.0)]
    assert drawn[1].lines["octavo full hit"].is_dashed
    tree = ElementTree.fromstring(draw_panels(drawn))
    assert len(tree.findall(".//{*}polyline")) == sum(len(panel.lines) for panel in drawn)
    assert tree.get("viewBox", "").startswith("0 0 960 ")


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    order = []

    def run(command: list[str], *_: object) -> Ended:
        order.append(command[2])
        assert command[3:] == ["--sections", "prompts", "decode", FAST_HASH]
        return Ended(0, "INFO\n" + json.dumps(LINE) + "\n", "", 1.0, 1)

    monkeypatch.setattr(control_plane, "run_process", run)
    monkeypatch.setattr(control_plane, "end_children_when_terminated", lambda: None)
    monkeypatch.setattr(
        "sys.argv",
        ["x", "--rounds", "2", "--peer-python", "/p/bin/python", "--json", "--sections", "prompts", "decode"],
    )
    control_plane.main()
    assert order == ["benchmarks.manager_octavo", "benchmarks.peers.manager_vllm"] * 2
    document = json.loads(capsys.readouterr().out)
    assert document["rounds"] == 2
    assert len(document["rows"]) == len(flattened(LINE))
