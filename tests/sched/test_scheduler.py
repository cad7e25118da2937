"""The scheduler on a null rank: budgets, order, preemption, refusal, abort, failure."""

from __future__ import annotations

from tests.sched.harness import Bench, make_request


def test_one_request_runs_to_its_end() -> None:
    bench = Bench()
    bench.add(make_request("a", range(10), max_tokens=5))
    bench.run()
    bench.check_results()
    assert bench.num_steps == 5
