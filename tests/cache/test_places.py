from __future__ import annotations

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.cache.full_attention import FullAttentionManager
from octavo.cache.group_manager import GroupManager
from octavo.cache.mamba import AlignedMambaManager
from octavo.cache.places import blocks_to_come, check_references, fill_places, wanted_places
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
    assert wanted_places(MANAGERS, request, 14, [4, 0], copied=(), num_spare=6) == ([range(4), [1, 3]], [4, 4])
    needed = wanted_places(MANAGERS, request, 14, [4, 0], copied=(), num_spare=5)
    assert [list(places) for places in needed[0]] == [[0, 1, 2, 3], [3]]


def test_copies_of_another_request_have_their_place() -> None:
    request = held([5], [0])
    places, _ = wanted_places(MANAGERS, request, 14, [4, 0], copied=([6], [7]), num_spare=5)
    assert [list(wanted) for wanted in places] == [[1, 2, 3], [1, 3]]


def test_the_null_block_stands_where_nothing_is_needed() -> None:
    pool = BlockPool(10)
    assert fill_places([ids([]), ids([0])], [[0, 1], [3]], [2, 5], pool) == [ids([1, 2]), ids([0, 0, 3, 0])]
    assert pool.num_used == 3


def test_blocks_to_come_are_those_at_once() -> None:
    full_kind, states = MANAGERS
    assert [blocks_to_come(full_kind, table, 0, 14) for table in ([], [1, 2])] == [4, 2]
    assert [blocks_to_come(states, [], 0, length) for length in (3, 14)] == [1, 2]
    assert blocks_to_come(states, [0, 7], 8, 14) == 1


def test_a_block_that_counts_wrong_is_found() -> None:
    pool = BlockPool(5)
    (block,) = pool.take(1)
    check_references(pool, [[0, block]])
    with pytest.raises(InvariantError, match=rf"block {block} stands in 2 tables and counts 1 references"):
        check_references(pool, [[block], [block]])
