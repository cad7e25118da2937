from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.oracle import DATA, main


def test_without_files_both_parts_run_and_nothing_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    planning, traces = capsys.readouterr().out.splitlines()[-2:]
    assert planning == "planning: agree 296, improved 1, differ 0, skipped 5"
    assert traces.startswith("traces: agree 31, improved 0, differ 0")


@pytest.mark.slow
def test_a_file_alone_runs_its_part_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", str(DATA / "cases.json")]) == 0
    assert capsys.readouterr().out.startswith("planning: ")
    assert main(["--traces", str(DATA / "traces.json")]) == 0
    assert "planning: " not in capsys.readouterr().out


def test_a_difference_is_printed_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = json.loads((DATA / "cases.json").read_text())
    planned = next(case for case in cases["items"] if "num_blocks" in case["out"])
    planned["out"]["num_blocks"] += 1
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    assert main(["--cases", str(path)]) == 1
    printed = capsys.readouterr().out
    assert f"{planned['id']}: num_blocks: recorded is " in printed
    assert printed.endswith("planning: agree 295, improved 1, differ 1, skipped 5\n")


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--cases", "no/such/file.json"])
    assert caught.value.code == 2
    assert "there is no file no/such/file.json" in capsys.readouterr().err
