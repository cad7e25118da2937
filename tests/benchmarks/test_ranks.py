"""The cost of ranks: what is measured, and what is told of it."""

from __future__ import annotations

import pytest

from benchmarks import ranks
from benchmarks.ranks import decode_step, main, null_steps, quantile


def test_null_ranks_are_timed_in_turns() -> None:
    found = null_steps([2], num_steps=100, num_requests=3)
    assert {name: len(each.steps) for name, each in found.items()} == dict.fromkeys(
        ("in this process", "2 processes", "2 echoes"), 100
    )
    assert all(seconds > 0 for each in found.values() for seconds in each.steps + each.first)


def test_the_first_steps_of_a_turn_are_told_apart() -> None:
    each = ranks.Timed()
    each.take([9.0, 8.0, 7.0, 1.0, 2.0])
    each.take([5.0, 8.0, 7.0, 3.0, 4.0])
    assert (each.steps, each.first) == ([1.0, 2.0, 3.0, 4.0], [9.0, 5.0])


def test_the_step_is_one_of_decoding() -> None:
    step = decode_step(3)
    assert (step.num_tokens, len(step.cached_requests.request_ids)) == (3, 3)
    own = ranks.NullRank(ranks.config_of(1), global_rank=0, local_rank=0)
    assert own.execute_model(step).sampled == {"request-0": 1, "request-1": 1, "request-2": 1}


def test_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 3.0
    assert quantile([1.0, 2.0], 0.99) == 2.0


def test_what_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ranks, "real_run", lambda model, num_stages: (2.0 * num_stages, 0.01))
    main(["--model", "demo", "--stages", "1,3", "--rounds", "2"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["3", "stage(s)", "6.00", "(6.00", "to", "6.00)", "10.00", "(10.00", "to", "10.00)"]
    each = ranks.Timed()
    each.take([4e-6, 9.0, 9.0, 1e-6, 2e-6, 3e-6])
    monkeypatch.setattr(ranks, "null_steps", lambda asked, **_: {f"{asked[0]} processes": each})
    main(["--ranks", "5"])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["5", "processes", "2", "3", "4"]
