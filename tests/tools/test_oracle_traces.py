from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.sliding_window import SlidingWindowManager
from tools.oracle_traces import Bijection, Replay, run_traces

FILE = Path(__file__).parent.parent / "data" / "oracle" / "traces.json"
TRACES: dict[str, dict[str, Any]] = {trace["id"]: trace for trace in json.loads(FILE.read_text())["items"]}


def run_one(trace: dict[str, Any], folder: Path) -> int:
    path = folder / "traces.json"
    path.write_text(json.dumps({"items": [trace]}))
    return run_traces(path)


def test_every_recorded_trace_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_traces(FILE) == 0
    assert capsys.readouterr().out == "traces: agree 31, improved 0, differ 0, skipped 0\n"


@pytest.mark.parametrize("field", ["hit", "scheduled", "free", "stored", "evicted", "junction"])
def test_any_other_number_differs_and_is_shown(field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = copy.deepcopy(TRACES["hybrid/f1s1/bs4/2"])
    place = next(i for i, event in enumerate(trace["events"]) if field in event)
    trace["events"][place][field] += 1
    assert run_one(trace, tmp_path) == 1
    shown = capsys.readouterr().out
    assert f"event {place} " in shown
    assert f": {field}: the trace has " in shown
    assert shown.endswith("traces: agree 0, improved 0, differ 1, skipped 0\n")


def test_another_success_differs(tmp_path: Path) -> None:
    trace = copy.deepcopy(TRACES["full/bs4/0"])
    trace["events"][2]["ok"] = False
    assert run_one(trace, tmp_path) == 1


@pytest.mark.parametrize("where", ["blocks", "final", "free_queue"])
def test_blocks_in_another_order_differ(where: str, tmp_path: Path) -> None:
    """Swapping two ids in one place cannot be a renaming of blocks."""
    trace = copy.deepcopy(TRACES["full/bs16/1"])
    blocks = {
        "blocks": trace["events"][0].get("blocks", [[]])[0],
        "final": next(iter(trace["final"].values()))[0],
        "free_queue": trace["free_queue"],
    }[where]
    assert len(blocks) >= 2
    blocks[0], blocks[1] = blocks[1], blocks[0]
    assert run_one(trace, tmp_path) == 1


def test_renaming_all_blocks_agrees(tmp_path: Path) -> None:
    trace = copy.deepcopy(TRACES["hybrid/local/1"])
    names = {block: block and trace["num_blocks"] - block for block in range(trace["num_blocks"])}

    def rename(tables: list[list[int]]) -> list[list[int]]:
        return [[names[block] for block in table] for table in tables]

    for event in trace["events"]:
        if "blocks" in event:
            event["blocks"] = rename(event["blocks"])
    trace["final"] = {request: rename(tables) for request, tables in trace["final"].items()}
    trace["free_queue"] = rename([trace["free_queue"]])[0]
    assert run_one(trace, tmp_path) == 0


def test_a_bijection_holds_in_both_directions_and_null_is_null() -> None:
    ids = Bijection()
    assert ids.matches([1, 2, 0], [7, 5, 0])
    assert ids.matches([2, 1], [5, 7])
    assert not ids.matches([3], [7])
    assert not ids.matches([1], [8])
    assert not ids.matches([0], [9])
    assert not ids.matches([4, 5], [9])


def test_an_unknown_kind_is_skipped_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = copy.deepcopy(TRACES["full/bs4/0"])
    trace["groups"][0]["kind"] = "mamba"
    assert run_one(trace, tmp_path) == 0
    assert capsys.readouterr().out == (
        "full/bs4/0: skipped, kind mamba\ntraces: agree 0, improved 0, differ 0, skipped 1\n"
    )


def test_a_trace_that_cannot_be_followed_differs_instead_of_ending_the_run(tmp_path: Path) -> None:
    trace = copy.deepcopy(TRACES["full/bs4/0"])
    trace["events"].insert(0, {"op": "free", "id": "nobody", "free": 13, "stored": 0, "evicted": 0})
    assert run_one(trace, tmp_path) == 1


def test_a_planted_bug_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SlidingWindowManager.num_dropped_blocks
    monkeypatch.setattr(SlidingWindowManager, "num_dropped_blocks", lambda self, n: right(self, max(0, n - 1)))
    assert Replay(TRACES["swa/bs4/2"]).run()
    assert not Replay(TRACES["full/bs4/0"]).run()


def test_another_order_of_freeing_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BlockPool.free
    monkeypatch.setattr(BlockPool, "free", lambda self, blocks: right(self, blocks[::-1]))
    assert Replay(TRACES["full/bs4/0"]).run()
