"""Where requests go: by prefix, by load, by parent; and what the router learns of what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.router import SLACK_STEPS, TOLERANCE, PrefixRouter, RouterLimits
from octavo.messages import EngineCoreOutput, EngineCoreRequest
from octavo.request import FinishReason, SamplingParams
from tests.engine.fake_plan import FAKE_PLAN

GRANULE = 16
BOTH = (0, 1)


def router(num_replicas: int = 2, *, capacity_tokens: int = 4096, step_tokens: int = 100) -> PrefixRouter:
    limits = RouterLimits(block_size=GRANULE, capacity_tokens=capacity_tokens, step_tokens=step_tokens)
    return PrefixRouter(num_replicas, limits)


def ask(name: str, *tokens: int, **more: Any) -> EngineCoreRequest:
    return EngineCoreRequest(request_id=name, prompt_token_ids=list(tokens), sampling=SamplingParams(), **more)


def prompt(number: int, num_tokens: int = 65) -> list[int]:
    return [number] * num_tokens


def news(name: str, *tokens: int, found: int = 0, end: FinishReason | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=name, new_token_ids=list(tokens), num_cached_tokens=found, finish_reason=end)


def run(router: PrefixRouter, name: str, tokens: list[int], *, found: int = 0, alive: Any = BOTH, **more: Any) -> int:
    """Route a request and let it end after one token."""
    replica = router.route(ask(name, *tokens, **more), alive)
    router.take_outputs([news(name, 7, found=found, end=FinishReason.LENGTH)])
    return replica


def test_limits_are_of_the_plan() -> None:
    limits = RouterLimits.of(FAKE_PLAN, 64)
    assert (limits.granule, limits.slack_tokens) == (16, SLACK_STEPS * 64)
    assert limits.capacity == FAKE_PLAN.figures.capacity_tokens // 16
    assert RouterLimits(block_size=1, capacity_tokens=64, step_tokens=1).granule == 16
    assert RouterLimits(block_size=10, capacity_tokens=64, step_tokens=1).granule == 20


def test_equal_beginnings_go_to_one_replica_and_others_where_less_waits() -> None:
    r = router()
    first = r.route(ask("a", *prompt(1)), BOTH)
    other = r.route(ask("b", *prompt(2)), BOTH)
    assert {first, other} == {0, 1}
    assert r.route(ask("c", *prompt(1), 5, 6), BOTH) == first, "what is under way counts, too"
    assert r.route(ask("d", *prompt(2), 5, 6), BOTH) == other
    assert r.loads[first] == r.loads[other] == 65 + 67


def test_the_longest_prefix_wins() -> None:
    r = router(3)
    all_three = (0, 1, 2)
    assert run(r, "a", prompt(1, 40) + prompt(2, 40), alive=[1]) == 1
    assert run(r, "b", prompt(1, 80), alive=[2]) == 2
    assert run(r, "c", prompt(1, 40) + prompt(2, 40) + [3], alive=all_three) == 1
    assert run(r, "d", prompt(1, 81), alive=all_three) == 2
    assert run(r, "e", prompt(9), alive=all_three) == 0


def test_an_overloaded_replica_is_passed_over() -> None:
    r = router(step_tokens=100)
    assert r.route(ask("0", *prompt(1, 100)), BOTH) == 0
    sent = 1
    while r.route(ask(str(sent), *prompt(1, 100)), BOTH) == 0:
        sent += 1
    # With n requests of 100 here and none there, one more is (n + 1) * 100 against (1 + T) * (n + 1) * 50 + slack.
    most = SLACK_STEPS * 100 / (1 - (1 + TOLERANCE) / 2) / 100
    assert sent == int(most)
    assert r.loads == [sent * 100, 100]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.booleans()), max_size=60), st.integers(1, 4))
def test_loads_stay_near_the_mean(requests: list[tuple[int, int, bool]], num_replicas: int) -> None:
    r = router(num_replicas, step_tokens=10)
    alive = range(num_replicas)
    for index, (kind, length, ends) in enumerate(requests):
        before = list(r.loads)
        replica = r.route(ask(str(index), *prompt(kind, length)), alive)
        mean = sum(r.loads) / num_replicas
        assert r.loads[replica] <= (1 + TOLERANCE) * mean + SLACK_STEPS * 10 or before[replica] == min(before)
        if ends:
            r.take_outputs([news(str(index), 1, end=FinishReason.LENGTH)])
    for index in range(len(requests)):
        r.forget(str(index))
    assert r.loads == [0] * num_replicas


def test_what_was_generated_is_a_prefix_too() -> None:
    r = router()
    assert r.route(ask("a", *prompt(1, 20)), [1]) == 1
    for token in range(100, 140):
        r.take_outputs([news("a", token)])
    assert r.loads == [0, 60]
    r.take_outputs([news("a", 140, end=FinishReason.STOP)])
    assert r.loads == [0, 0]
    assert run(r, "b", prompt(1, 20), alive=[0]) == 0
    assert run(r, "c", [*prompt(1, 20), *range(100, 130)]) == 1, "the longer beginning is there"


def test_where_nothing_waits_the_emptiest_cache_is_filled() -> None:
    r = router(3)
    assert sorted(run(r, str(number), prompt(number), alive=(0, 1, 2)) for number in range(6)) == [0, 0, 1, 1, 2, 2]


def test_salts_are_kept_apart() -> None:
    r = router()
    assert run(r, "a", prompt(1), cache_salt="x", alive=[1]) == 1
    assert run(r, "b", prompt(1), cache_salt="y") == 0
    assert run(r, "c", prompt(1)) == 0
    assert run(r, "d", prompt(1), cache_salt="x") == 1


def test_children_go_where_their_parent_is() -> None:
    r = router(step_tokens=1)
    assert r.route(ask("p", *prompt(1), keep_blocks=True), [1]) == 1
    for index in range(50):
        assert r.route(ask(f"c{index}", *prompt(1), parent_id="p"), BOTH) == 1, "whatever the load"
    r.take_outputs([news("p", 7, end=FinishReason.LENGTH)])
    assert r.route(ask("late", *prompt(2), parent_id="p"), BOTH) == 1
    assert r.owner("p") == 1
    r.forget("p")
    assert r.owner("p") is None
    assert r.route(ask("orphan", *prompt(3), parent_id="p"), BOTH) == 0
    assert r.route(ask("other", *prompt(3), parent_id="nobody"), BOTH) == 0


def test_a_parent_whose_replica_is_gone_is_no_parent() -> None:
    r = router()
    run(r, "p", prompt(1), keep_blocks=True, alive=[1])
    assert r.owner("p") == 1
    r.lose(1)
    assert r.owner("p") is None
    assert r.route(ask("c", *prompt(1), parent_id="p"), [0]) == 0


def test_less_found_than_expected_tells_of_what_is_older() -> None:
    r = router()
    run(r, "old", prompt(1), alive=[1])
    run(r, "older than this", prompt(2), alive=[1])
    run(r, "young", prompt(3), alive=[1])
    assert r.route(ask("again", *prompt(2)), BOTH) == 1
    r.take_outputs([news("again", 7, found=0)])  # it is gone, so `old` must be, too
    r.forget("again")
    assert run(r, "a", prompt(3), found=64) == 1, "what was used later is still there"
    assert run(r, "b", prompt(1)) == 0


def test_what_was_expected_and_never_confirmed_tells_nothing() -> None:
    r = router()
    run(r, "old", prompt(1), alive=[1])
    assert r.route(ask("first", *prompt(2)), [1]) == 1
    assert r.route(ask("second", *prompt(2)), [1]) == 1
    r.take_outputs([news("first", 7), news("second", 7)])  # side by side: neither found anything
    r.forget("first")
    r.forget("second")
    assert run(r, "a", prompt(1), found=64) == 1


@pytest.mark.parametrize("how", ["it failed", "the cache was not read", "the prompt was scored"])
def test_what_tells_nothing_of_the_cache(how: str) -> None:
    r = router()
    run(r, "old", prompt(1), alive=[1])
    run(r, "young", prompt(2), alive=[1])
    sampling = SamplingParams(
        skip_reading_prefix_cache=how == "the cache was not read",
        prompt_logprobs=1 if how == "the prompt was scored" else None,
    )
    request = EngineCoreRequest(request_id="again", prompt_token_ids=prompt(2), sampling=sampling)
    assert r.route(request, BOTH) == 1
    if how == "it failed":
        r.take_outputs([news("again", end=FinishReason.ERROR)])
    else:
        r.take_outputs([news("again", 7, found=0, end=FinishReason.LENGTH)])
    assert r.loads == [0, 0]
    assert run(r, "a", prompt(1), found=64) == 1, "nothing was forgotten"


def test_the_view_holds_no_more_than_a_cache() -> None:
    r = router(capacity_tokens=20 * GRANULE)
    for number in range(100):
        run(r, str(number), prompt(number), alive=[1])
    assert len(r._views[1]) == 20
    assert run(r, "young", prompt(98)) == 1
    assert run(r, "old", prompt(5)) == 0


@pytest.mark.parametrize("how", ["lose", "reset"])
def test_a_replica_that_holds_nothing_is_not_preferred(how: str) -> None:
    r = router()
    run(r, "a", prompt(1), alive=[1])
    r.route(ask("under way", *prompt(2)), [1])
    if how == "lose":
        assert r.lose(1) == ["under way"]
        assert r.loads == [0, 0]
    else:
        r.reset(1)
        r.forget("under way")
    assert run(r, "b", prompt(1)) == 0


def test_news_of_nobody_is_passed_over() -> None:
    r = router()
    r.take_outputs([news("gone", 7)])
    r.forget("gone")
    assert r.loads == [0, 0]
