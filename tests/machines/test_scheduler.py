"""Scheduler and cache manager under random requests: no leak, no alias, no starvation, and the right tokens.

Each run draws one engine (groups, pool, limits, policy) and then a sequence of arrivals, aborts, failing steps and
steps. `Bench` checks memory and counts after every step; at the end every request must have come to what it comes to
alone, within the number of steps that the scheduler promises.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.kv.specs import LayerSpec
from octavo.request import Request, SamplingParams
from octavo.sched.running import ADMISSION_SPARE
from tests.sched.harness import VOCAB_SIZE, Bench, chunked, full, make_request, sliding

MAX_MODEL_LEN = 40


@st.composite
def group_specs(draw: st.DrawFn) -> list[LayerSpec]:
    """One to three groups of any mix of kinds, of one block size."""
    block_size = draw(st.integers(1, 5))
    window = st.builds(lambda tokens: sliding(tokens, block_size), st.integers(1, 14))
    chunk = st.builds(lambda tokens: chunked(tokens, block_size), st.integers(1, 14))
    return draw(st.lists(st.one_of(st.just(full(block_size)), window, chunk), min_size=1, max_size=3))


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    """An engine whose pool holds between one and a few requests."""
    budget = draw(st.integers(1, 24))
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.integers(1, 6)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_chunked_prefill=draw(st.booleans()),
        max_chunk_tokens=draw(st.one_of(st.none(), st.integers(1, 12))),
        admit_whole_prompt=draw(st.booleans()),
    )
    return Bench(
        draw(group_specs()),
        num_blocks=draw(st.integers(4, 48)),
        max_model_len=MAX_MODEL_LEN,
        config=config,
        enable_caching=draw(st.booleans()),
        retention_interval=draw(st.sampled_from([None, 0])),
        admission_spare=draw(st.sampled_from([ADMISSION_SPARE, (0, 0, 0, 0), (0,)])),
        sure_chunk_tokens=draw(st.one_of(st.none(), st.integers(1, 12))),
    )


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.num_added = 0

    @initialize(bench=benches(), trunk=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=30, max_size=30))
    def build(self, bench: Bench, trunk: list[int]) -> None:
        self.bench = bench
        self.trunk = trunk

    @rule(
        shared=st.integers(0, 30),
        own=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "a"]),
        eos=st.sampled_from([(), (1, 2, 3, 4, 5, 6)]),
        stop=st.sampled_from([(), (7, 8, 9)]),
        min_tokens=st.integers(0, 3),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        num_completions=st.sampled_from([1, 1, 1, 2, 4]),
        keep_blocks=st.booleans(),
    )
    def add(
        self,
        shared,
        own,
        max_tokens,
        priority,
        salt,
        eos,
        stop,
        min_tokens,
        ignore_eos,
        prompt_logprobs,
        num_completions,
        keep_blocks,
    ):
        sampling = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            stop_token_ids=stop,
            ignore_eos=ignore_eos,
            prompt_logprobs=prompt_logprobs,
        )
        parent_id = None
        for _ in range(num_completions):
            self.num_added += 1
            request = make_request(
                f"r{self.num_added}",
                self.trunk[:shared] + own,
                max_tokens=max_tokens,
                priority=priority,
                salt=salt,
                eos=eos,
                sampling=sampling,
                parent_id=parent_id,
                keep_blocks=keep_blocks,
            )
            self.offer(request)
            parent_id = parent_id or request.request_id

    def offer(self, request: Request) -> None:
        max_tokens = request.max_output_tokens
        try:
            self.bench.add(request)
        except RequestError:
            manager = self.bench.manager
            longest = request.num_prompt_tokens + max_tokens - 1
            assert (
                longest + 1 > MAX_MODEL_LEN
                or not manager.can_ever_fit(longest)
                or not self.bench.config.enable_chunked_prefill
            )

    @precondition(lambda self: self.bench.scheduler.forks.kept_ids())
    @rule(data=st.data(), tails=st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=1, max_size=3))
    def grow(self, data: st.DataObject, tails: list[list[int]]) -> None:
        """Children of an ended request, as a beam has them: its tokens, and perhaps some more."""
        parent = self.bench.requests[data.draw(st.sampled_from(self.bench.scheduler.forks.kept_ids()))]
        for tail in tails:
            self.num_added += 1
            tokens = parent.token_ids.tolist() + tail
            salt = data.draw(st.sampled_from([parent.cache_salt] * 5 + ["b"]))
            self.offer(
                make_request(
                    f"r{self.num_added}",
                    tokens,
                    max_tokens=data.draw(st.integers(1, 4)),
                    salt=salt,
                    parent_id=parent.request_id,
                    keep_blocks=data.draw(st.booleans()),
                )
            )

    @precondition(lambda self: self.bench.scheduler.forks.kept_ids())
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        assert self.bench.scheduler.abort_request(data.draw(st.sampled_from(self.bench.scheduler.forks.kept_ids())))

    @precondition(lambda self: self.bench.scheduler.has_unfinished_requests())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.abort(data.draw(st.sampled_from(self.bench.scheduler.request_ids())))

    @precondition(lambda self: self.bench.scheduler.has_unfinished_requests())
    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.bench.scheduler.has_unfinished_requests():
                self.bench.step()

    @precondition(lambda self: self.bench.scheduler.has_unfinished_requests())
    @rule()
    def fail_step(self) -> None:
        self.bench.fail_step()

    @precondition(lambda self: self.bench.scheduler.has_unfinished_requests())
    @rule(data=st.data())
    def abort_in_the_middle_of_a_step(self, data: st.DataObject) -> None:
        bench = self.bench
        step = bench.scheduler.schedule()
        bench.check_step(step)
        output = bench.rank.execute_model(step)
        bench.abort(data.draw(st.sampled_from(bench.scheduler.request_ids())))
        bench.take(bench.scheduler.update_from_output(step, output))
        bench.check()

    @rule()
    def reset_prefix_cache(self) -> None:
        holds = self.bench.scheduler.stats().num_used_blocks > 0
        assert self.bench.scheduler.reset_prefix_cache() is not holds

    @invariant()
    def counts_add_up(self) -> None:
        self.bench.check()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.run()
            self.bench.check_results()


def test_random_traffic() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=settings(max_examples=25, stateful_step_count=25))


@pytest.mark.slow
def test_more_random_traffic() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=settings(max_examples=250, stateful_step_count=50))


@pytest.mark.long
def test_much_random_traffic() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=settings(max_examples=5000, stateful_step_count=80))
