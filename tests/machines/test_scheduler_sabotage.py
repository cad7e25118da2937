"""Planted bugs in cache and scheduler: the null rank's memory, or the counts, must show each of them.

The same traffic passes without a bug. Where a bug would also be caught by `check_integrity`, that is switched off, so
that the memory alone has to show it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.request_blocks import ComputedBlocks
from octavo.cache.sliding_window import SlidingWindowManager
from octavo.config import SchedulerConfig
from octavo.errors import InvariantError
from octavo.kv.specs import LayerSpec
from octavo.messages import SchedulerOutput
from octavo.sched.scheduler import Scheduler
from tests.null_executor import MemoryFault, NullRank
from tests.sched.harness import Bench, full, make_request, sliding


def drive(*, rank_class: type[NullRank] = NullRank, num_seeds: int = 4) -> None:
    """Requests with shared and with equal prompts through small pools, with aborts and failing steps."""
    for seed in range(num_seeds):
        rng = random.Random(seed)
        bench = Bench(
            [full(3), sliding(7, 3)],
            num_blocks=21,
            max_model_len=40,
            config=SchedulerConfig(max_num_batched_tokens=12, max_chunk_tokens=rng.choice([None, 5])),
            rank_class=rank_class,
        )
        trunk = [rng.randrange(40) for _ in range(16)]
        for number in range(24):
            prompt = trunk[: rng.randint(1, 16)] + [rng.randrange(40) for _ in range(rng.choice([0, 1, 6]))]
            bench.add(make_request(f"r{number}", prompt, max_tokens=rng.randint(1, 12)))
            for _ in range(rng.randint(0, 4)):
                if bench.scheduler.has_unfinished_requests():
                    (bench.fail_step if rng.random() < 0.05 else bench.step)()
            if rng.random() < 0.2 and bench.scheduler.has_unfinished_requests():
                bench.abort(rng.choice(bench.scheduler.request_ids()))
        bench.run()
        bench.check_results()


def test_the_traffic_passes_without_a_bug() -> None:
    drive()


class WritesOneSlotFurther(NullRank):
    def write(self, step: SchedulerOutput, group: int, spec: LayerSpec) -> None:
        super().write(step, group, spec)
        for name, num_new in step.num_scheduled_tokens.items():
            sequence = self.sequences[name]
            start, stop = sequence.num_computed, sequence.num_computed + num_new
            blocks, offsets = self.slots(sequence, group, start, stop)
            flat = self.stamps.reshape(-1)
            slots = blocks * self.stamps.shape[1] + offsets
            flat[np.minimum(slots + 1, len(flat) - 1)] = self.stamps_of(sequence, group, start, stop)


class ForgetsNobody(NullRank):
    def take_in(self, step: SchedulerOutput) -> None:
        step.finished_request_ids.clear()
        super().take_in(step)


@pytest.mark.parametrize("rank_class", [WritesOneSlotFurther, ForgetsNobody])
def test_bugs_of_a_rank(rank_class: type[NullRank]) -> None:
    with pytest.raises(MemoryFault):
        drive(rank_class=rank_class)


def free_the_window_a_block_early(patch: pytest.MonkeyPatch) -> None:
    right = SlidingWindowManager.num_dropped_blocks
    patch.setattr(
        SlidingWindowManager, "num_dropped_blocks", lambda self, tokens: right(self, tokens + self.block_size)
    )


def keep_evicted_blocks_in_the_index(patch: pytest.MonkeyPatch) -> None:
    def drop_keys(self: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            self._keys[block] = 0

    patch.setattr(BlockPool, "_drop_keys", drop_keys)


def keep_what_a_failed_step_entered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCacheManager, "uncache", lambda self, request, num_tokens: None)


def hit_without_comparing_tokens(patch: pytest.MonkeyPatch) -> None:
    """Every request is taken for the first one that was ever looked up, as by a hash that always collides."""
    right = KVCacheManager.get_computed_blocks
    first: list[ComputedBlocks] = []

    def look(self: KVCacheManager, request) -> ComputedBlocks:
        found = right(self, request)
        if found.num_tokens and not first:
            first.append(found)
        if first and first[0].num_tokens < request.num_tokens:
            return msgspec.structs.replace(
                found, num_tokens=first[0].num_tokens, tables=first[0].tables, nodes=first[0].nodes
            )
        return found

    patch.setattr(KVCacheManager, "get_computed_blocks", look)


def share_a_writable_block(patch: pytest.MonkeyPatch) -> None:
    """The pool hands out its newest block twice."""
    right = BlockPool.take
    last: list[int] = []

    def take(self: BlockPool, count: int) -> list[int]:
        blocks = right(self, count)
        if last and blocks:
            blocks[0] = last[0]
        last[:] = blocks[-1:] or last
        return blocks

    patch.setattr(BlockPool, "take", take)


def preempt_without_telling_the_ranks(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._preempt_worst

    def preempt(self: Scheduler, first: int, *, for_prompt: bool) -> bool:
        told = len(self._forget)
        done = right(self, first, for_prompt=for_prompt)
        del self._forget[told:]
        return done

    patch.setattr(Scheduler, "_preempt_worst", preempt)


@pytest.mark.parametrize(
    "plant",
    [
        free_the_window_a_block_early,
        keep_evicted_blocks_in_the_index,
        keep_what_a_failed_step_entered,
        hit_without_comparing_tokens,
        share_a_writable_block,
        preempt_without_telling_the_ranks,
    ],
)
def test_the_memory_shows_it(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(Bench, "check", lambda self: None)
    monkeypatch.setattr(Bench, "check_step", lambda self, step: None)
    monkeypatch.setattr(KVCacheManager, "check_integrity", lambda self: None)
    with pytest.raises(MemoryFault):
        drive(num_seeds=12)


def forget_to_free_an_aborted_request(patch: pytest.MonkeyPatch) -> None:
    right = KVCacheManager.free
    patch.setattr(
        KVCacheManager, "free", lambda self, request: None if request.finish_reason == "abort" else right(self, request)
    )


def forget_to_free_a_preempted_request(patch: pytest.MonkeyPatch) -> None:
    right = KVCacheManager.free
    patch.setattr(
        KVCacheManager, "free", lambda self, request: None if request.finish_reason is None else right(self, request)
    )


def hit_the_last_token_too(patch: pytest.MonkeyPatch) -> None:
    right = KVCacheManager.get_computed_blocks

    def look(self: KVCacheManager, request) -> ComputedBlocks:
        request.append_token(0)
        try:
            return right(self, request)
        finally:
            request.token_ids.pop()

    patch.setattr(KVCacheManager, "get_computed_blocks", look)


@pytest.mark.parametrize(
    "plant", [forget_to_free_an_aborted_request, forget_to_free_a_preempted_request, hit_the_last_token_too]
)
def test_the_checks_show_it(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantError)):
        drive(num_seeds=12)
