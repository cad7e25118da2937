"""The line of waiting requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sched.queue import POLICIES, Entry, RequestQueue
from tests.sched.harness import make_request


def entry(order: int, *, policy: str = "fcfs", priority: int = 0) -> Entry:
    request = make_request(f"r{order}", [1, 2, 3], max_tokens=5, priority=priority)
    return Entry(request, (POLICIES[policy](request), 0, 0, order))


def drain(queue: RequestQueue) -> list[str]:
    return [queue.pop().request.request_id for _ in range(len(queue))]


def test_first_come_first_served_ignores_priorities() -> None:
    queue = RequestQueue()
    for order in range(4):
        queue.push(entry(order, priority=-order))
    assert drain(queue) == ["r0", "r1", "r2", "r3"]


def test_priority_comes_before_arrival() -> None:
    queue = RequestQueue()
    for order, priority in enumerate([1, 0, 1, -1]):
        queue.push(entry(order, policy="priority", priority=priority))
    assert drain(queue) == ["r3", "r1", "r0", "r2"]


def test_a_returning_request_comes_before_all_that_arrived_later() -> None:
    queue = RequestQueue()
    first, second, third = entry(0), entry(1), entry(2)
    for item in (first, second, third):
        queue.push(item)
    assert [queue.pop(), queue.pop()] == [first, second]
    queue.push(second)
    assert queue.peek() is second
    queue.push(first)
    assert drain(queue) == ["r0", "r1", "r2"]


def test_an_empty_queue_has_no_head() -> None:
    queue = RequestQueue()
    assert queue.peek() is None
    with pytest.raises(IndexError):
        queue.pop()


def test_the_cache_never_holds_the_last_token() -> None:
    assert entry(0).longest == 3 + 5 - 1


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "discard"]), st.integers(0, 3)), max_size=80))
def test_behaves_as_a_sorted_list(actions: list[tuple[str, int]]) -> None:
    queue = RequestQueue()
    model: list[Entry] = []
    for order, (action, number) in enumerate(actions):
        if action == "push":
            item = entry(order, policy="priority", priority=number)
            queue.push(item)
            model.append(item)
        elif model and action == "pop":
            assert queue.pop() is min(model, key=lambda item: item.key)
            model.remove(min(model, key=lambda item: item.key))
        elif model:
            queue.discard(model.pop(number % len(model)))
        assert len(queue) == len(model)
        assert queue.peek() is min(model, key=lambda item: item.key, default=None)


def test_many_aborts_leave_nothing_behind() -> None:
    queue = RequestQueue()
    items = [entry(order) for order in range(1000)]
    for item in items:
        queue.push(item)
    for item in items[1:]:
        queue.discard(item)
    assert len(queue) == 1
    assert len(queue._heap) < 32
