"""References, the line of unreferenced blocks, and the index, one rule a test. Longer histories: tests/machines."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.flat_array import MANY
from octavo.errors import InvariantError
from tests.cache.build import ids


def test_blocks_are_handed_out_in_the_order_of_their_ids_and_never_the_null_block() -> None:
    pool = BlockPool(6)
    assert pool.take(2).tolist() == [1, 2]
    assert pool.take(3).tolist() == [3, 4, 5]
    assert pool.num_available == 0
    pool.check_integrity()


def test_taking_more_than_there_is_is_a_bug_of_the_caller() -> None:
    pool = BlockPool(4)
    with pytest.raises(InvariantError, match="4 blocks asked of a pool with 3 available"):
        pool.take(4)
    assert pool.take(3).tolist() == [1, 2, 3]


def test_a_pool_has_at_least_the_null_block() -> None:
    assert BlockPool(1).num_available == 0
    with pytest.raises(InvariantError, match="null block"):
        BlockPool(0)


def test_blocks_without_key_go_to_the_front_in_the_given_order() -> None:
    pool = BlockPool(8)
    pool.take(4)
    pool.free(ids([3, 1]))
    assert pool.line() == [3, 1, 5, 6, 7]
    pool.free(ids([4, 2]))
    assert pool.line() == [4, 2, 3, 1, 5, 6, 7]
    assert (pool.num_plain, pool.num_cached, pool.num_used) == (7, 0, 0)


def test_blocks_with_key_go_to_the_back_in_eviction_order() -> None:
    pool = BlockPool(8)
    pool.take(4)
    pool.insert(ids([1, 2, 3]), [10, 20, 30])
    pool.free(ids([4, 3, 2, 1]))
    assert pool.line() == [4, 5, 6, 7, 3, 2, 1]
    assert (pool.num_plain, pool.num_cached, pool.num_used) == (4, 3, 0)
    assert pool.take(5).tolist() == [4, 5, 6, 7, 3]
    assert [pool.find(key) for key in (10, 20, 30)] == [1, 2, 0]
    assert pool.key_of(3) == 0
    pool.check_integrity()


def test_a_touched_block_leaves_the_line_and_keeps_its_key() -> None:
    pool = BlockPool(5)
    pool.take(3)
    pool.insert(ids([1, 2, 3]), [7, 8, 9])
    pool.free(ids([3, 2, 1]))
    pool.touch(ids([0, 2]))
    assert pool.line() == [4, 3, 1]
    assert pool.references(2) == 1
    pool.touch(ids([2]))
    assert pool.references(2) == 2
    pool.free(ids([2]))
    assert pool.line() == [4, 3, 1]
    pool.free(ids([2]))
    assert pool.line() == [4, 3, 1, 2]
    assert pool.find(8) == 2
    pool.check_integrity()


def test_null_blocks_are_skipped_and_cost_nothing() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.free(ids([0, 2, 0]))
    assert pool.count_unreferenced(ids([0, 1, 2])) == 1
    assert pool.line() == [2, 3]
    pool.check_integrity()


@pytest.mark.parametrize("count", [1, MANY + 1])
def test_freeing_too_often_is_found(count: int) -> None:
    pool = BlockPool(2 * count + 2)
    blocks = pool.take(count)
    pool.free(blocks)
    with pytest.raises(InvariantError, match="freed more often than referenced"):
        pool.free(blocks)


def test_of_blocks_with_one_key_the_first_is_found_until_it_is_reused() -> None:
    pool = BlockPool(5)
    lost: list[int] = []
    pool.on_vacant = lost.extend
    pool.take(4)
    assert list(pool.insert(ids([1, 2]), [70, 71])) == [70, 71]
    assert pool.insert(ids([3, 4]), [70, 72]) == [72]
    assert pool.find(70) == 1
    pool.free(ids([1, 3, 2, 4]))
    assert pool.take(1).tolist() == [1]
    assert pool.find(70) == 3
    assert lost == []
    pool.check_integrity()
    assert pool.take(2).tolist() == [3, 2]
    assert lost == [70, 71]
    assert pool.find(70) == 0
    pool.check_integrity()


def test_the_later_of_two_blocks_with_one_key_can_go_first() -> None:
    pool = BlockPool(4)
    pool.take(3)
    pool.insert(ids([1]), [5])
    pool.insert(ids([2]), [5])
    pool.insert(ids([3]), [5])
    pool.free(ids([2, 1]))
    assert pool.take(1).tolist() == [2]
    assert pool.find(5) == 1
    assert pool.take(1).tolist() == [1]
    assert pool.find(5) == 3
    pool.check_integrity()


def test_keys_stored_and_evicted_are_counted_by_block() -> None:
    pool = BlockPool(4)
    pool.take(3)
    pool.insert(ids([1, 2]), [5, 5])
    pool.free(ids([3, 2, 1]))
    assert (pool.num_keys_stored, pool.num_keys_evicted) == (2, 0)
    pool.take(3)
    assert (pool.num_keys_stored, pool.num_keys_evicted) == (2, 2)


def test_forgotten_blocks_stay_with_their_owner_but_are_not_found() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.insert(ids([1, 2]), [5, 6])
    pool.forget(ids([0, 2]))
    assert (pool.find(5), pool.find(6)) == (1, 0)
    assert pool.num_used == 2
    pool.free(ids([2, 1]))
    assert pool.line() == [2, 3, 1]
    pool.check_integrity()


def test_reset_needs_an_idle_pool_and_keeps_the_order_of_the_line() -> None:
    pool = BlockPool(6)
    lost: list[int] = []
    pool.on_vacant = lost.extend
    pool.take(4)
    pool.insert(ids([1, 2, 3]), [5, 6, 7])
    pool.free(ids([4, 2]))
    assert not pool.reset()
    assert pool.find(6) == 2
    pool.free(ids([1, 3]))
    before = pool.line()
    assert pool.reset()
    assert pool.line() == before == [4, 5, 2, 1, 3]
    assert sorted(lost) == [5, 6, 7]
    assert (pool.num_plain, pool.num_cached) == (5, 0)
    pool.check_integrity()


def test_long_runs_do_what_short_runs_do() -> None:
    """The same history, given block by block and in runs above `MANY`, ends in the same line."""
    count = 3 * MANY
    lines = []
    for size in (1, count):
        pool = BlockPool(4 * count + 1)
        blocks = [block for _ in range(0, count, size) for block in pool.take(size)]
        for start in range(0, count, size):
            part = blocks[start : start + size]
            pool.insert(ids(part), [block + 100 for block in part])
        for start in range(0, count, size):
            pool.free(ids(blocks[::-1][start : start + size]))
        # Gaps of several lengths, at both ends and inside, given out of order.
        hits = blocks[:40] + blocks[70:140] + [blocks[60]]
        for start in range(0, len(hits), size):
            pool.touch(ids(hits[start : start + size]))
        pool.check_integrity()
        for start in range(0, len(hits), size):
            pool.free(ids(hits[start : start + size]))
        pool.check_integrity()
        evicted = [block for _ in range(0, 4 * count, size) for block in pool.take(size)]
        pool.check_integrity()
        lines.append((evicted, pool.num_keys_evicted, pool.num_used))
    assert lines[0] == lines[1]


def test_integrity_names_what_is_wrong() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool._refs[1] = 0
    with pytest.raises(InvariantError, match="block 1 has 0 references but stands wrong in the line"):
        pool.check_integrity()
    pool._refs[1] = 1
    pool.insert(ids([2]), [9])
    pool._first[9] = 0
    with pytest.raises(InvariantError, match="block 2 is not in the index under its key 9"):
        pool.check_integrity()


def test_a_million_blocks_are_built_quickly_and_take_tens_of_bytes_each() -> None:
    started = time.thread_time()
    pool = BlockPool(1_000_000)
    seconds = time.thread_time() - started
    assert pool.take(1).tolist() == [1]
    assert seconds < 0.5
    del pool
    tracemalloc.start()
    pool = BlockPool(1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
    assert pool.take(3).tolist() == [1, 2, 3]


def test_no_operation_grows_with_the_pool() -> None:
    """The same work on a pool 100 times as large takes about the same time (generously bounded: clocks are coarse)."""

    def work(pool: BlockPool) -> float:
        started = time.thread_time()
        for _ in range(40):
            blocks = pool.take(200)
            pool.insert(blocks, range(1000, 1200))
            pool.free(blocks[::-1])
            pool.touch(blocks)
            pool.forget(blocks)
            pool.free(blocks)
        return time.thread_time() - started

    small, large = BlockPool(10_000), BlockPool(1_000_000)
    work(small), work(large)
    fastest = [min(work(pool) for _ in range(5)) for pool in (small, large)]
    assert fastest[1] < 5 * fastest[0] + 0.002
