"""The quick measurements: what is run, in which order, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import quick
from benchmarks.quick import Job, jobs, run_jobs

PATHS = {name: Path(f"/{name}.json") for name in ("w1", "w2", "w3", "w4", "w5")}


def test_octavo_comes_first_and_only_peers_that_are_there(tmp_path: Path) -> None:
    alone = jobs(None, PATHS)
    assert alone[0].title == "control plane"
    assert {job.title for job in alone[1:]} == {
        f"{name}, {model}" for name in quick.ALONE for model in ("demo", "demo-smollm2")
    }
    for name in ("vllm", "llamacpp"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    both = jobs(tmp_path, PATHS)
    assert "--peer-python" in both[0].command
    titles = [job.title for job in both[len(alone) :]]
    assert titles[0] == "w1, demo-smollm2, beside llamacpp"
    assert titles[-1] == "w5, demo, beside vllm"
    assert len(titles) == 2 * 2 * len(quick.BESIDE)


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    codes = {"good": 0, "bad": 1, "slow": None}
    monkeypatch.setattr(quick, "run_shown", lambda command, cwd, timeout_s: codes[command[0]])
    todo = [Job("a", ["good"], 0), Job("b", ["bad"], 0), Job("c", ["slow"], 0), Job("d", ["good"], 1e6)]
    assert run_jobs(todo, 100) == ["failed: b", "not done in time: c", "left out: d"]
    assert "--- a\n" in capsys.readouterr().out
