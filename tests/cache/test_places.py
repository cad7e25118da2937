from __future__ import annotations

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.full_attention import FullAttentionManager
from octavo.cache.group_manager import GroupManager
from octavo.cache.mamba import AlignedMambaManager
from octavo.cache.places import (
    blocks_to_come,
    check_references,
    dense_blocks,
    lengthened,
    movable_groups,
    wanted_places,
)
from octavo.cache.prefix_cache import NO_NODE
from octavo.cache.request_blocks import RequestBlocks
from octavo.errors import InvariantError
from octavo.kv.specs import MambaSpec
from tests.cache.build import full, ids

STATE = MambaSpec(block_size=4, shapes=((1,),), dtypes=("float16",), cache_mode="align")
MANAGERS: list[GroupManager] = [
    FullAttentionManager(full(4), max_model_len=64, max_chunk_tokens=64),
    AlignedMambaManager(STATE, max_model_len=64, max_chunk_tokens=64),
]


def held(*tables: list[int]) -> RequestBlocks:
    blocks = RequestBlocks(
        tables=list(map(ids, tables)), num_dropped=[0] * len(tables), num_cached_tokens=0, tip=NO_NODE
    )
    blocks.boundaries = (8, 0)
    return blocks


def test_places_worth_having_are_left_out_first() -> None:
    request = held([], [])
    assert wanted_places(MANAGERS, request, 14, [4, 0], copied=(), moved=(), num_spare=6) == (
        [range(4), [1, 3]],
        [4, 4],
    )
    needed = wanted_places(MANAGERS, request, 14, [4, 0], copied=(), moved=(), num_spare=5)
    assert [list(places) for places in needed[0]] == [[0, 1, 2, 3], [3]]


def test_copies_of_another_request_have_their_place() -> None:
    request = held([5], [0])
    places, _ = wanted_places(MANAGERS, request, 14, [4, 0], copied=([6], [7]), moved=(), num_spare=5)
    assert [list(wanted) for wanted in places] == [[1, 2, 3], [1, 3]]


def test_the_null_block_stands_where_nothing_is_needed() -> None:
    pool = BlockPool(10)
    request = held([], [0])
    new = lengthened(MANAGERS, request, 14, [4, 0], pool, copied=(), moved=(), num_spare=5)
    assert new == [ids([1, 2, 3, 4]), ids([0, 0, 5])]
    assert pool.num_used == 5


def test_dense_tables_get_a_block_in_every_place() -> None:
    pool = BlockPool(10)
    assert dense_blocks([MANAGERS[0]] * 2, [ids([]), ids([7])], 7, pool) == [ids([1, 2]), ids([3])]


def test_a_block_moves_on_where_none_is_free() -> None:
    pool = BlockPool(10)
    (block,) = pool.take(1)
    pool.insert(ids([block]), ids([3]))
    request = held([], [0, block])
    new = lengthened(MANAGERS, request, 14, [4, 0], pool, copied=(), moved=[1], num_spare=4)
    assert new == [ids([2, 3, 4, 5]), ids([0, block])]
    assert request.tables[1] == ids([0, 0])
    assert request.num_dropped == [0, 2]
    assert (pool.num_used, pool.key_of(block)) == (5, 0)


def test_only_the_block_that_is_read_next_and_by_nobody_else_moves_on() -> None:
    pool = BlockPool(10)
    block, other = pool.take(2)
    tables = [ids([other, other]), ids([0, block])]
    assert movable_groups(MANAGERS, tables, 8, 9, pool, num_own=1, most=2) == [1]
    assert movable_groups(MANAGERS, tables, 8, 9, pool, num_own=1, most=0) == []
    assert movable_groups(MANAGERS, tables, 8, 8, pool, num_own=1, most=2) == []  # it has its place already
    assert movable_groups(MANAGERS, tables, 4, 9, pool, num_own=1, most=2) == []
    assert movable_groups(MANAGERS, [ids([]), ids([])], 0, 9, pool, num_own=1, most=2) == []
    assert movable_groups(MANAGERS, tables, 8, 9, pool, num_own=0, most=2) == []  # a hit that somebody holds
    pool.insert(ids([block]), ids([3]))
    pool.touch(ids([block]))
    assert movable_groups(MANAGERS, tables, 8, 9, pool, num_own=1, most=2) == []  # another request holds it


def test_blocks_to_come_are_those_at_once() -> None:
    full_kind, states = MANAGERS
    assert [blocks_to_come(full_kind, table, 0, 14) for table in ([], [1, 2])] == [4, 2]
    assert [blocks_to_come(states, [], 0, length) for length in (3, 14)] == [1, 1]
    assert blocks_to_come(states, [0, 7], 8, 14) == 0


def test_a_block_that_counts_wrong_is_found() -> None:
    pool = BlockPool(5)
    (block,) = pool.take(1)
    check_references(pool, [[0, block]])
    with pytest.raises(InvariantError, match=rf"block {block} stands in 2 tables and counts 1 references"):
        check_references(pool, [[block], [block]])
