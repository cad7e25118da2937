"""Owners get equal shares of what is admitted, in their own order, and nobody starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.messages import ModelRunnerOutput
from octavo.request import Request
from octavo.sched.queue import Entry, RequestQueue
from octavo.sched.scheduler import Scheduler
from octavo.sched.shares import FairShares, cost_of
from tests.sched.harness import cache_config, full, make_request

OWNERS = "abc"


class Line:
    """The line of a scheduler that admits one request at a time."""

    def __init__(self) -> None:
        self.shares, self.queue = FairShares(), RequestQueue()
        self.num_added = 0
        self.waiting: list[Request] = []
        self.admitted: list[Request] = []

    def add(self, owner: str | None, num_tokens: int) -> Request:
        request = make_request(f"{owner}{self.num_added}", range(num_tokens), max_tokens=1, owner=owner)
        self.num_added += 1
        self.queue.push(Entry(request, (0, self.shares.start_of(request), 0, self.num_added)))
        self.waiting.append(request)
        return request

    def admit(self) -> Request | None:
        if not len(self.queue):
            return None
        entry = self.queue.pop()
        self.shares.admitted(entry.key[1])
        self.waiting.remove(entry.request)
        self.admitted.append(entry.request)
        return entry.request


steps = st.lists(
    st.one_of(st.none(), st.tuples(st.sampled_from([*OWNERS, None]), st.integers(1, 50))), min_size=1, max_size=80
)
"""None admits somebody; else an owner adds a request of so many tokens."""


@given(steps)
def test_an_owners_requests_keep_their_order(events: list[tuple[str | None, int] | None]) -> None:
    line = Line()
    for event in events:
        line.admit() if event is None else line.add(*event)
    while line.admit():
        pass
    for owner in OWNERS:
        names = [request.request_id for request in line.admitted if request.owner == owner]
        assert names == sorted(names, key=lambda name: int(name[1:]))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_one_owner_alone_and_nobodys_requests_are_first_come_first_served(
    sizes: list[int], data: st.DataObject
) -> None:
    for owner in ("a", None):
        line = Line()
        for size in sizes:
            line.add(owner, size)
            if data.draw(st.booleans()):
                line.admit()
        while line.admit():
            pass
        numbers = [int(request.request_id.removeprefix(str(owner))) for request in line.admitted]
        assert numbers == sorted(numbers)


SIZES = st.lists(st.integers(1, 50), min_size=2, max_size=30)


@given(SIZES, SIZES)
def test_owners_who_wait_are_admitted_of_alike(first: list[int], second: list[int]) -> None:
    line, served = Line(), Counter[str]()
    for size in first:
        line.add("a", size)
    for size in second:
        line.add("b", size)
    bound = max(first) + max(second) + 2
    while {request.owner for request in line.waiting} == {"a", "b"}:
        request = line.admit()
        assert request is not None
        served[str(request.owner)] += cost_of(request)
        assert abs(served["a"] - served["b"]) <= bound


@given(st.integers(1, 50), st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_a_flood_does_not_starve_another_owner(size: int, flood: list[int]) -> None:
    """However many requests `a` has waiting, and goes on adding, `b` is next after at most one of his."""
    line = Line()
    for number in flood:
        line.add("a", number)
    line.admit()
    request, before = line.add("b", size), 0
    while request not in line.admitted:
        line.add("a", 1)
        line.admit()
        before += 1
    assert before <= 2


def test_the_scheduler_lets_a_newcomer_run_before_a_flood() -> None:
    config = cache_config([full()], num_blocks=200, max_model_len=64, max_chunk_tokens=16)
    manager = KVCacheManager(config, enable_caching=False)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1), manager, max_model_len=64)
    for number in range(6):
        scheduler.add_request(make_request(f"a{number}", range(8), max_tokens=1, owner="a"))
    order: list[str] = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        order += step.num_scheduled_tokens
        scheduler.update_from_output(step, ModelRunnerOutput(sampled=dict.fromkeys(step.num_scheduled_tokens, 5)))
        if len(order) == 2:
            scheduler.add_request(make_request("b", range(8), max_tokens=1, owner="b"))
    assert order == ["a0", "a1", "b", "a2", "a3", "a4", "a5"]


def test_owners_of_the_past_are_forgotten() -> None:
    shares = FairShares()
    for number in range(3000):
        request = make_request(f"r{number}", range(4), owner=f"owner {number}")
        start = shares.start_of(request)
        shares.admitted(start + 100 * number)
    assert len(shares._ends) < 1100
