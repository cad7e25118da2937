"""The arithmetic of a comparison: which way a ratio points, what its spread is of, whose tokens agree."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.comparison import FIGURES, agreement, as_fields, described, ratio, ratios, table
from benchmarks.sides import Outcome

LONE = {"first_token_s": [0.5], "finished_s": [2.5], "wall_s": 2.5, "outputs": [[7] * 11]}


def _run(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "engine": "octavo", "version": "1", "dtype": "bfloat16", "num_threads": 2, "flags": {"x": 1}, "load_s": 1.0,
        "start_to_first_token_s": 1.5, "wall_s": 4.0, "first_token_s": [0.5, 1.5], "finished_s": [2.0, 4.0],
        "outputs": [[1] * 10, [2] * 10], "peak_rss_bytes": 2**30,
    }  # fmt: skip
    return Outcome(**{**fields, **changes})


def test_figures_are_counted_from_handing_in() -> None:
    run = _run()
    assert FIGURES["output"].of(run) == 5.0
    assert FIGURES["mean first token"].of(run) == 1.0
    assert FIGURES["decode"].of(run) is None, "several requests have no single decode rate"
    assert FIGURES["decode"].of(_run(**LONE)) == 5.0
    one_token = _run(**{**LONE, "outputs": [[7]]})
    assert FIGURES["decode"].of(one_token) is None
    assert FIGURES["output"].of(one_token) is None


@pytest.mark.parametrize("name", FIGURES)
def test_a_ratio_above_one_means_that_octavo_is_better(name: str) -> None:
    slow = {
        "wall_s": 8.0, "first_token_s": [1.0], "finished_s": [8.0], "start_to_first_token_s": 3.0,
        "outputs": [[7] * 11], "peak_rss_bytes": 2**31,
    }  # fmt: skip
    better = ratio(FIGURES[name], _run(**LONE), _run(**slow))
    assert better is not None
    assert better > 1
    assert ratio(FIGURES[name], _run(**slow), _run(**LONE)) == pytest.approx(1 / better)


def test_ratios_are_of_runs_that_followed_each_other() -> None:
    ours = [_run(wall_s=seconds) for seconds in (1.0, 2.0, 4.0)]
    theirs = [_run(wall_s=seconds) for seconds in (2.0, 4.0, 12.0)]
    assert ratios(ours, theirs)["wall"] == (2.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="zip"):
        ratios(ours, theirs[:2])


def test_agreement_counts_requests_whose_first_tokens_are_the_same() -> None:
    ours = _run(outputs=[[1] * 10, [2] * 10, [3]])
    assert agreement(ours, _run(outputs=[[1] * 8 + [9, 9], [2] * 7 + [9] * 3, [3]])) == (3, 3, 2)
    assert agreement(ours, _run(outputs=[[9] * 10, [2, 9], [4]])) == (3, 1, 0)


def test_the_table_has_runs_medians_and_ratios() -> None:
    ours = [_run(wall_s=seconds) for seconds in (1.0, 2.0, 4.0)]
    theirs = [_run(wall_s=4.0, engine="other") for _ in range(3)]
    lines = {line.split("  ")[0]: line for line in table(ours, theirs).splitlines()}
    assert "octavo (median: runs)" in lines["figure"]
    assert "other (median: runs)" in lines["figure"]
    assert "2: 1 2 4" in lines["wall, s"]
    assert lines["wall, s"].endswith("2.00 (1.00..4.00)")
    assert "1024: 1024 1024 1024" in lines["peak RSS, MiB"]
    assert not any(line.startswith("decode") for line in lines)
    assert described(ours[0]) == "octavo 1: bfloat16, 2 threads, x=1"


def test_programs_get_everything() -> None:
    fields = as_fields([_run(), _run(wall_s=5.0)], [_run(wall_s=8.0), _run(wall_s=10.0)])
    assert fields["medians"]["octavo"]["wall"] == 4.5
    assert "decode" not in fields["medians"]["octavo"]
    assert fields["ratios"]["wall"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert fields["agreement"] == {
        "requests": 2, "same_first_token": 2, "same_first_tokens": 2, "first_tokens": 8,
    }  # fmt: skip
    assert [run["wall_s"] for run in fields["runs"]["peer"]] == [8.0, 10.0]
