"""The log of a start-up: everything is kept, and told only where that is wanted."""

from __future__ import annotations

import pytest

from octavo.cli.stage_log import StageLog
from octavo.messages import StageReport

LOADED = StageReport(name="load_model", seconds=1.5, result="18 layers", rank=1, facts={"num_threads": 2})


def test_stages_and_their_facts_are_kept_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    log = StageLog(tells=False)
    log.note("start_python", 0.25, "flags read")
    log(LOADED)
    assert [(stage.name, stage.seconds) for stage in log.stages] == [("start_python", 0.25), ("load_model", 1.5)]
    assert log.facts() == {"num_threads": 2}
    assert capsys.readouterr() == ("", "")


def test_each_stage_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = StageLog(tells=True)
    log.note("start_python", 0.25, "flags read")
    log(LOADED)
    told = capsys.readouterr()
    first, second = [line.split() for line in told.err.splitlines()]
    assert told.out == ""
    assert first[1:] == ["s", "start_python", "0.25", "s", "flags", "read"]
    assert second[1:] == ["s", "rank", "1", "load_model", "1.50", "s", "18", "layers"]
    assert 0 <= float(first[0]) <= float(second[0])
