"""What a scheduler says of itself, and what it says when it is stuck: brought about here by breaking it."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.errors import StuckError
from octavo.messages import CoreState
from octavo.sched.queue import Entry
from tests.sched.harness import Bench, make_request


def test_the_state_names_who_runs_and_the_head_of_the_line_and_changes_nothing() -> None:
    bench = Bench(num_blocks=9, config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2))
    for name in "abcd":
        bench.add(make_request(name, range(6), max_tokens=8))
    bench.step()
    state = bench.scheduler.state()
    assert state == bench.scheduler.state()
    assert state.stats == bench.scheduler.stats()
    assert [each.request_id for each in state.running] == ["a", "b"]
    assert [each.num_computed_tokens for each in state.running] == [6, 6]
    assert [each.num_blocks for each in state.running] == [2, 2]
    (head,) = state.waiting
    assert (head.request_id, head.num_blocks, head.num_wanted_blocks, head.is_held_back) == ("c", 0, 2, False)
    assert head.num_spare_blocks == 2  # one for each of the two that run
    assert not state.is_stuck
    bench.run()
    bench.check_results()


def _state_when_stuck(bench: Bench) -> tuple[CoreState, str]:
    with pytest.raises(StuckError) as caught:
        bench.scheduler.schedule()
    assert isinstance(caught.value.state, CoreState)
    return caught.value.state, str(caught.value)


def test_a_protected_request_that_was_lost_holds_the_line_back_and_is_found_out() -> None:
    bench = Bench(num_blocks=9)
    bench.add(make_request("a", range(6)))
    request = bench.scheduler._entries["a"].request
    request.num_preemptions = bench.max_preemptions
    bench.scheduler._running.protected = Entry(make_request("ghost", range(3)), (0, 0, 0, 0))
    state, message = _state_when_stuck(bench)
    assert state.is_stuck
    assert state.waiting[0].is_held_back
    assert "No request can run: 0 run, 1 wait, and 8 of 8 blocks are free" in message
    assert "The first is a with 6 prompt and 0 output tokens" in message
    assert "may not run beside a protected one" in message


def test_blocks_that_leaked_are_found_out() -> None:
    bench = Bench(num_blocks=9)
    bench.manager._pool.take(7)
    bench.add(make_request("a", range(6)))
    state, message = _state_when_stuck(bench)
    assert state.stats.num_used_blocks == 7
    assert state.is_stuck
    assert "1 of 8 blocks are free" in message
    assert "needs 2 blocks" in message
