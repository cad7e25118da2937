"""Preemption: who loses, how it comes back, how often at most, and that everybody ends."""

from __future__ import annotations

import random
from bisect import insort

import pytest

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.request import RequestStatus
from octavo.sched.running import ADMISSION_SPARE, RunningList
from tests.sched.harness import Bench, full, make_request, sliding


def tight(policy: str = "fcfs", **options) -> Bench:
    """Four usable blocks of four tokens."""
    config = SchedulerConfig(max_num_batched_tokens=20, policy=policy)
    return Bench(num_blocks=5, config=config, **{"admission_spare": (0, 0, 0, 0), **options})


def test_the_worst_request_loses_its_blocks_to_the_best() -> None:
    bench = tight()
    for name, first in [("a", 0), ("b", 20), ("c", 40)]:
        bench.add(make_request(name, range(first, first + 7), max_tokens=7))
    bench.step()
    bench.step()
    step, news = bench.step()
    assert step.num_scheduled_tokens == {"a": 1}
    assert step.finished_request_ids == ["b"]
    assert news.stats.num_preemptions == 1
    request = bench.requests["b"]
    assert request.status is RequestStatus.PREEMPTED
    assert request.num_output_tokens == 2

    while "a" not in bench.reasons:
        assert list(bench.step()[0].num_scheduled_tokens) == ["a"], "b waits at the head, so c waits too"
    step, _ = bench.step()
    assert step.new_requests[0].request_id == "b"
    assert step.new_requests[0].token_ids == request.token_ids[:9].tolist()
    assert step.new_requests[0].num_prompt_tokens == 7
    bench.run()
    bench.check_results()
    assert bench.requests["b"].num_cached_tokens == 0, "the hit at first admission is what is told"


def test_under_priority_the_older_but_worse_request_loses() -> None:
    bench = tight("priority")
    bench.add(make_request("worse", range(7), max_tokens=7, priority=1))
    bench.add(make_request("better", range(20, 27), max_tokens=7, priority=0))
    bench.run()
    bench.check_results()
    assert [request.num_preemptions for request in bench.requests.values()] == [1, 0]
    assert list(bench.reasons) == ["better", "worse"]


def test_the_last_request_stalls_and_keeps_its_blocks() -> None:
    bench = tight()
    bench.add(make_request("a", range(5), max_tokens=4))
    bench.add(make_request("b", range(20, 28), max_tokens=4))
    bench.add(make_request("c", [1], max_tokens=1))
    assert dict(bench.step()[0].num_scheduled_tokens) == {"a": 5, "b": 8}
    for _ in range(3):
        assert dict(bench.step()[0].num_scheduled_tokens) == {"a": 1}, "b needs a third block; c may not overtake it"
        assert bench.requests["b"].status is RequestStatus.RUNNING
    assert dict(bench.step()[0].num_scheduled_tokens) == {"b": 1, "c": 1}
    bench.run()
    bench.check_results()
    assert bench.scheduler.stats().num_preemptions == 0


def traffic(bench: Bench, rng: random.Random, *, num_requests: int) -> None:
    """Add requests of random sizes while the bench runs; at least every third step."""
    added = 0
    while added < num_requests or bench.scheduler.has_unfinished_requests():
        if added < num_requests and (rng.random() < 0.4 or not bench.scheduler.has_unfinished_requests()):
            added += 1
            prompt = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
            request = make_request(f"r{added}", prompt, max_tokens=rng.randint(1, 24), priority=rng.randint(0, 2))
            try:
                bench.add(request)
            except RequestError:
                continue
        watch(bench)
    bench.check_results()


def watch(bench: Bench) -> None:
    """One step, in which the request that must progress does."""
    running = bench.scheduler._running
    before, protected = list(running.entries), running.protected
    step, _ = bench.step()
    scheduled = step.num_scheduled_tokens
    if protected is None:
        assert not before or before[0].request.request_id in scheduled
        return
    bench.num_protected_steps = getattr(bench, "num_protected_steps", 0) + 1
    better = [entry.request.request_id for entry in before[: before.index(protected)]]
    assert protected.request.request_id not in step.finished_request_ids
    assert protected.request.request_id in scheduled or any(name in scheduled for name in better)


def crowd(seed: int, policy: str, admission_spare: tuple[int, ...]) -> Bench:
    """What is left of an engine whose pool holds two to four requests, after twenty went through it."""
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    bench = Bench(
        [full(size), sliding(rng.randint(1, 9), size)][: rng.randint(1, 2)],
        num_blocks=rng.randint(12, 30),
        max_model_len=36,
        config=SchedulerConfig(max_num_batched_tokens=rng.randint(2, 20), policy=policy, max_num_seqs=8),
        enable_caching=rng.random() < 0.5,
        admission_spare=admission_spare,
    )
    traffic(bench, rng, num_requests=20)
    return bench


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("admission_spare", [(), (0,), (0, 0), ADMISSION_SPARE])
def test_nobody_is_preempted_more_often_than_promised(policy: str, admission_spare: tuple[int, ...]) -> None:
    """`Bench.check` counts the preemptions after each step, `watch` sees that someone who must progress does."""
    benches = [crowd(seed, policy, admission_spare) for seed in range(12)]
    most = max(request.num_preemptions for bench in benches for request in bench.requests.values())
    if admission_spare == ADMISSION_SPARE:
        assert most >= 2
    else:
        assert most == len(admission_spare)
        assert any(hasattr(bench, "num_protected_steps") for bench in benches)


def test_leaving_room_to_grow_saves_preemptions() -> None:
    careless, careful = (
        sum(crowd(seed, "fcfs", spare).scheduler.stats().num_preemptions for seed in range(4))
        for spare in ((0, 0, 0, 0), ADMISSION_SPARE)
    )
    assert careful < careless


def test_a_better_request_stalls_rather_than_take_what_is_reserved() -> None:
    bench = Bench(
        num_blocks=10,
        max_model_len=36,
        config=SchedulerConfig(max_num_batched_tokens=30),
        enable_caching=False,
        admission_spare=(0,),
    )
    for number, (name, num_prompt, max_tokens) in enumerate([("a", 1, 10), ("b", 12, 6), ("c", 9, 19)]):
        bench.add(make_request(name, range(20 * number, 20 * number + num_prompt), max_tokens=max_tokens))
    num_stalls = 0
    while bench.scheduler.has_unfinished_requests():
        entries = list(bench.scheduler._running.entries)
        protected = bench.scheduler._running.protected
        step, _ = bench.step()
        if protected is not None and any(
            entry.request.request_id not in step.num_scheduled_tokens for entry in entries
        ):
            num_stalls += 1
            assert protected.request.request_id in step.num_scheduled_tokens
    bench.check_results()
    assert num_stalls == 13
    assert [request.num_preemptions for request in bench.requests.values()] == [0, 0, 1]


def test_without_protection_the_promise_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningList, "add", lambda self, entry: insort(self.entries, entry, key=lambda item: item.key))
    monkeypatch.setattr(RunningList, "blocks_to_leave", lambda self, entry, num_computed: 0)
    with pytest.raises(AssertionError):
        for seed in range(12):
            crowd(seed, "priority", (0,))
