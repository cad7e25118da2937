"""Hits over several kinds of groups, each worked out by hand."""

from __future__ import annotations

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.request import Request
from tests.cache.build import full, go_on, local, manager, place, request, window


def forget(cache: KVCacheManager, owner: Request, group: int, *places: int) -> None:
    """Let some of the blocks of `owner` be found no more, as if they had been evicted."""
    cache._pool.forget([cache.block_ids(owner.request_id)[group][p] for p in places])


def test_the_last_token_is_always_computed() -> None:
    cache = manager(full(4))
    place(cache, request("a", range(16)))
    for length, hit in ((16, 12), (17, 16), (15, 12), (13, 12), (12, 8), (4, 0), (1, 0)):
        assert cache.get_computed_blocks(request("b", range(length))).num_tokens == hit


def test_a_hit_names_blocks_and_nulls_by_group() -> None:
    cache = manager(full(4), window(8))
    first = request("a", range(24))
    own = place(cache, first)
    computed = cache.get_computed_blocks(request("b", [*range(22), 99, 99]))
    assert computed.num_tokens == 20
    # Position 20 reads positions 13 to 20: blocks 3 and 4.
    assert computed.block_ids == (own[0][:5], [0, 0, 0, *own[1][3:5]])
    assert computed.junction == 0


def test_windowed_and_full_groups_shorten_each_other() -> None:
    cache = manager(full(4), window(8))
    first = request("a", range(32))
    place(cache, first)
    asked = request("b", range(40))
    assert cache.get_computed_blocks(asked).num_tokens == 32
    forget(cache, first, 1, 7)
    shorter = cache.get_computed_blocks(asked)
    assert (shorter.num_tokens, shorter.junction) == (28, 32)
    # The window now lacks block 4, which 28 = 7 blocks does not read, and the full group lacks block 6, so 24 is left;
    # 24 reads blocks 4 and 5, so does 20 read 3 and 4, and 16 is the longest on which both agree.
    forget(cache, first, 1, 4)
    forget(cache, first, 0, 6)
    shortest = cache.get_computed_blocks(asked)
    assert (shortest.num_tokens, shortest.junction) == (16, 24)


def test_three_kinds_reach_a_fixed_point() -> None:
    cache = manager(full(4), window(8), window(12))
    first = request("a", range(48))
    place(cache, first)
    asked = request("b", range(60))
    assert cache.get_computed_blocks(asked).num_tokens == 48
    # window 8 loses block 10: it accepts 40 and less. window 12 (3 blocks) loses block 7: it accepts 28 and less, or
    # 44 and more. 40 is shortened to 28 by the second, which the first still accepts.
    forget(cache, first, 1, 10)
    forget(cache, first, 2, 7)
    assert cache.get_computed_blocks(asked).num_tokens == 28
    forget(cache, first, 1, 5)
    assert cache.get_computed_blocks(asked).num_tokens == 20


def test_without_a_full_group_the_way_to_the_window_need_not_be_cached() -> None:
    cache = manager(window(8), window(16))
    first = request("a", range(64))
    place(cache, first, 40)
    go_on(cache, first, 24)
    cache.free(first)
    assert cache.get_computed_blocks(request("b", range(70))).num_tokens == 64


def test_chunked_groups_need_their_chunk_alone() -> None:
    cache = manager(full(4), local(16))
    first = request("a", range(40))
    own = place(cache, first)
    computed = cache.get_computed_blocks(request("b", range(40)))
    assert computed.num_tokens == 36
    assert computed.block_ids == (own[0][:9], [0] * 8 + own[1][8:9])
    forget(cache, first, 1, 8)
    assert cache.get_computed_blocks(request("b", range(40))).num_tokens == 32


def test_blocks_of_different_sizes_hit_at_common_multiples() -> None:
    cache = manager(full(6), window(8, block_size=4))
    assert (cache.scheduler_block_size, cache.hash_block_size) == (12, 2)
    first = request("a", range(40))
    own = place(cache, first)
    computed = cache.get_computed_blocks(request("b", range(40)))
    assert computed.num_tokens == 36
    assert computed.block_ids == (own[0][:6], [0] * 7 + own[1][7:9])
    assert cache.get_computed_blocks(request("b", range(35))).num_tokens == 24
    assert cache.get_computed_blocks(request("b", range(12))).num_tokens == 0


def test_salts_keep_requests_apart() -> None:
    cache = manager(full(4))
    place(cache, request("a", range(16), salt="x"))
    assert cache.get_computed_blocks(request("b", range(16), salt="x")).num_tokens == 12
    assert cache.get_computed_blocks(request("b", range(16), salt="y")).num_tokens == 0
    assert cache.get_computed_blocks(request("b", range(16))).num_tokens == 0
    assert cache.get_computed_blocks(request("b", range(16), salt="")).num_tokens == 0


def test_looking_changes_nothing() -> None:
    cache = manager(full(4), window(8))
    place(cache, request("a", range(32)))
    cache.free(request("a", []))
    before = (cache.line(), cache.counts(), cache.prefix_stats(), cache._prefixes.num_nodes)
    for tokens in (range(32), range(5, 40), [*range(16), 1, 2, 3]):
        cache.get_computed_blocks(request("b", tokens))
        cache.get_computed_blocks(request("b", tokens, salt="new"))
    assert (cache.line(), cache.counts(), cache.prefix_stats(), cache._prefixes.num_nodes) == before
    cache.check_integrity()


def test_blocks_of_this_step_are_found_in_this_step() -> None:
    """Attention writes all K and V of a step before it reads, so a second request may go on from the first's."""
    cache = manager(full(4), window(8))
    place(cache, request("a", range(20)))
    assert place(cache, request("b", range(20)))[0][:4] == cache.block_ids("a")[0][:4]
