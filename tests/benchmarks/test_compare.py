"""Comparing: who runs when, what is counted, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.sides import Outcome


def _outcome(engine: str) -> Outcome:
    return Outcome(engine, "1", "bfloat16", 2, {}, 1.0, 2.0, 1.0, [0.5], [1.0], [[1, 2, 3]], 2**20)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who ran, in turn."""
    ran: list[str] = []

    def run(engine: str) -> Outcome:
        ran.append(engine)
        return _outcome(engine)

    monkeypatch.setattr(compare, "run_octavo", lambda setup, extra: run("octavo"))
    monkeypatch.setattr(compare, "run_peer", lambda peer, python, setup: run(peer))
    monkeypatch.setattr(compare, "time_torch_import", lambda: 1.25)
    monkeypatch.setattr(compare, "end_children_when_terminated", lambda: None)
    return ran


def _main(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> None:
    workload = folder / "w.json"
    workload.write_text(json.dumps({"name": "toy", "requests": [{"prompt": [1], "max_tokens": 3}]}))
    given = ["--peer", "llamacpp", "--peer-python", "/p", "--workload", str(workload), "--model", str(folder)]
    monkeypatch.setattr("sys.argv", ["compare", *given, *arguments])
    compare.main()


def test_sides_take_turns_and_change_places(
    monkeypatch: pytest.MonkeyPatch, order: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _main(monkeypatch, tmp_path, "--runs", "2", "--json")
    warm, first, second = order[:2], order[2:4], order[4:]
    assert first == ["octavo", "llamacpp"]
    assert warm == second == ["llamacpp", "octavo"]
    document: Any = json.loads(capsys.readouterr().out)
    (found,) = document["comparisons"]
    assert (found["workload"], found["precision"]) == ("toy", "bf16")
    assert len(found["runs"]["octavo"]) == len(found["runs"]["peer"]) == 2, "the warm-up does not count"
    assert found["import_torch_s"]["median"] == 1.25
    assert {"commit", "cpu", "load", "date"} <= set(document["machine"])


def test_people_read_flags_figures_agreement_and_the_floor(
    monkeypatch: pytest.MonkeyPatch, order: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _main(monkeypatch, tmp_path, "--runs", "1", "--warm-up", "0")
    out = capsys.readouterr().out
    for part in (
        "commit ", "octavo 1: bfloat16, 2 threads", "llamacpp 1: bfloat16, 2 threads", "1.00 (1.00..1.00)",
        "of 1 requests the first token is the same in 1, the first 8 in 1\n",
        "import torch takes 1.25 s; octavo's first token comes 0.75 s",
    ):  # fmt: skip
        assert part in out


@pytest.mark.parametrize("arguments", [["--peer", "vllm", "--precision", "packed"], ["--runs", "0"], ["--peer", "x"]])
def test_wrong_usage_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _main(monkeypatch, tmp_path, *arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_bad_workload_is_one_sentence(monkeypatch: pytest.MonkeyPatch, order: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: The workload file /nowhere cannot be read"):
        _main(monkeypatch, tmp_path, "--workload", "/nowhere")
    assert order == []
