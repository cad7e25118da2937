"""The lives of blocks, on a clock of the test's own; and a watched pool is a pool."""

from __future__ import annotations

import random

from octavo.cache.block_pool import BlockPool
from octavo.cache.block_watch import WatchedBlockPool
from octavo.cache.flat_array import MANY
from tests.cache.build import ids


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_life_ends_when_the_content_is_given_up_for_another() -> None:
    clock = Clock()
    pool = WatchedBlockPool(3, share=1, clock=clock)
    blocks = pool.take(2)
    pool.insert(blocks, [7, 8])
    clock.now = 5
    pool.free(blocks)
    clock.now = 9
    pool.touch(ids([1]))
    clock.now = 10
    pool.free(ids([1]))
    clock.now = 30
    assert pool.take(1).tolist() == [2]
    times = pool.take_times()
    assert (times.lifetimes_s, times.idle_s, times.reuse_gaps_s) == ([30], [25], [4])
    assert pool.take_one() == 1
    times = pool.take_times()
    assert (times.lifetimes_s, times.idle_s, times.reuse_gaps_s) == ([30], [20], [])


def test_blocks_without_content_begin_a_new_life_and_none_ends() -> None:
    clock = Clock()
    pool = WatchedBlockPool(3, share=1, clock=clock)
    for clock.now in (0, 10, 20):
        block = pool.take_one()
        pool.free(ids([block]))
    assert pool.take_times().lifetimes_s == []
    block = pool.take_one()
    pool.insert_one(block, 5)
    clock.now = 21
    pool.free(ids([block]))
    assert pool.take(2).tolist() == [2, block]
    assert pool.take_times().lifetimes_s == [1]


def test_a_sample_has_its_share_of_the_blocks() -> None:
    clock = Clock()
    pool = WatchedBlockPool(1001, share=0.1, clock=clock)
    blocks = pool.take(1000)
    pool.insert(blocks, list(range(1, 1001)))
    clock.now = 2
    pool.free(blocks)
    pool.take(1000)
    assert pool.take_times().lifetimes_s == [2] * 100


def test_a_watched_pool_does_what_a_pool_does() -> None:
    rng = random.Random(3)
    plain, watched = BlockPool(400), WatchedBlockPool(400, share=0.3)
    held: list[list[int]] = []
    key = 0
    for _ in range(400):
        count = rng.choice([1, 3, MANY + 5])
        if rng.random() < 0.5 and count <= plain.num_available:
            blocks = [pool.take(count) if count > 1 else ids([pool.take_one()]) for pool in (plain, watched)]
            assert blocks[0] == blocks[1]
            if rng.random() < 0.7:
                keys = list(range(key + 1, key + 1 + count))
                key += count
                for pool in (plain, watched):
                    pool.insert(ids(blocks[0].tolist()), keys)
            held.append(blocks[0].tolist())
        elif held:
            freed = held.pop(rng.randrange(len(held)))
            for pool in (plain, watched):
                pool.free(ids(freed))
        cached = [block for block in plain.line() if plain.key_of(block)][:2]
        if cached and rng.random() < 0.3:
            for pool in (plain, watched):
                pool.touch(ids(cached))
            held.append(cached)
        assert plain.line() == watched.line()
    watched.check_integrity()
    assert watched.take_times().lifetimes_s
