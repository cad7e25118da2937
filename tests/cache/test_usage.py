"""Blocks by group, beside counts made by hand and by the pool."""

from __future__ import annotations

from octavo.cache.usage import GroupBlocks
from tests.cache.build import full, manager, request, window


def test_a_shared_block_counts_once_and_windows_give_theirs_back() -> None:
    cache = manager(full(4), window(8, 4))
    assert cache.blocks_by_group() == [GroupBlocks(used=0, cached=0)] * 2
    first = request("a", range(24))
    assert cache.allocate_slots(first, 24) is not None
    assert [group.used for group in cache.blocks_by_group()] == [6, 6]
    first.num_computed_tokens = 24
    first.append_token(99)
    assert cache.allocate_slots(first, 1) is not None
    # Token 24 reads 17 ... 24 in the window, so blocks 0 ... 3 are given back; both groups took block 6.
    assert [group.used for group in cache.blocks_by_group()] == [7, 3]
    assert [group.cached for group in cache.blocks_by_group()] == [0, 4]
    second = request("b", range(24))
    computed = cache.get_computed_blocks(second)
    assert computed.num_tokens == 20
    assert cache.allocate_slots(second, 4, computed) is not None
    groups = cache.blocks_by_group()
    assert [group.used for group in groups] == [8, 5]
    counts = cache.counts()
    assert sum(group.used for group in groups) == counts.used
    assert sum(group.cached for group in groups) == counts.cached
    for each in (first, second):
        cache.free(each)
    groups = cache.blocks_by_group()
    assert [group.used for group in groups] == [0, 0]
    assert sum(group.cached for group in groups) == cache.counts().cached
