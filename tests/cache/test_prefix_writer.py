"""What enters the prefix cache; that a block at a time enters as many at once do."""

from __future__ import annotations

import random

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.prefix_writer import PrefixWriter
from octavo.cache.registry import make_group_manager
from octavo.cache.request_blocks import RequestBlocks
from octavo.kv.specs import LayerSpec
from tests.cache.build import full, ids, request, window

BOUNDARIES = (12, 0)


class Bench:
    """One request with a table for each of `specs`, and what of it can be found."""

    def __init__(self, *specs: LayerSpec, intervals: tuple[int, ...], hash_block_size: int = 4) -> None:
        self.managers: list[GroupManager] = [
            make_group_manager(spec, max_model_len=256, max_chunk_tokens=256) for spec in specs
        ]
        self.pool = BlockPool(200)
        self.prefixes = PrefixCache(self.pool, num_groups=len(specs))
        size = max(manager.block_size for manager in self.managers)
        self.writer = PrefixWriter(
            self.managers,
            self.prefixes,
            intervals=intervals,
            scheduler_block_size=size,
            hash_block_size=hash_block_size,
        )
        self.held = RequestBlocks(
            tables=[self.pool.take(32 * size // manager.block_size) for manager in self.managers],
            num_dropped=[0] * len(specs),
            num_cached_tokens=0,
            tip=self.prefixes.hold_root(b""),
        )
        self.held.boundaries = BOUNDARIES
        self.request = request("r", range(100))

    def enter(self, *lengths: int) -> list[list[int]]:
        """Places of each group that can be found once the request has grown to `lengths`."""
        for length in lengths:
            self.writer.enter(self.request, self.held, length)
            self.prefixes.check_integrity([self.held.tip])
        return [[place for place, block in enumerate(table) if self.pool.key_of(block)] for table in self.held.tables]


def test_full_blocks_enter_and_no_other() -> None:
    bench = Bench(full(4), intervals=(4,))
    assert bench.enter(3) == [[]]
    assert bench.enter(11) == [[0, 1]]
    assert bench.enter(11, 12, 13) == [[0, 1, 2]]
    assert bench.held.num_cached_tokens == 12


def test_a_window_keeps_what_is_read_at_its_boundaries() -> None:
    dense, sparse = Bench(full(4), window(8), intervals=(4, 4)), Bench(full(4), window(8), intervals=(4, 0))
    assert dense.enter(32)[1] == list(range(8))
    assert sparse.enter(32)[1] == [1, 2]


def test_what_was_dropped_does_not_enter() -> None:
    bench = Bench(full(4), window(8), intervals=(4, 4))
    bench.enter(16)
    bench.held.tables[1][4:6] = ids([0, 0])
    bench.held.num_dropped[1] = 6
    assert bench.enter(20, 24, 28) == [list(range(7)), [0, 1, 2, 3, 6]]


def test_larger_blocks_enter_where_they_end() -> None:
    bench = Bench(full(8), full(4), intervals=(8, 8))
    assert bench.enter(12) == [[0], [0, 1]]
    assert bench.enter(16, 17) == [[0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("intervals", [(4, 4), (4, 0), (4, 12)])
def test_a_block_at_a_time_enters_what_many_at_once_do(intervals: tuple[int, ...]) -> None:
    draw = random.Random(7)
    for _ in range(20):
        lengths = sorted(draw.sample(range(1, 100), draw.randint(1, 12)))
        at_once, by_one = (Bench(full(4), window(8), intervals=intervals) for _ in range(2))
        last = lengths[-1]
        assert by_one.enter(*range(1, last + 1)) == at_once.enter(*lengths) == by_one.enter(last)
        for bench in (at_once, by_one):
            keys = [bench.pool.key_of(block) for table in bench.held.tables for block in table]
            assert [key for key in keys if key] and bench.held.nodes == ids(range(2, 2 + last // 4))
