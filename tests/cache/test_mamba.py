from __future__ import annotations

import msgspec

from octavo.cache.group_manager import NEVER
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.mamba import AlignedMambaManager, MambaManager
from octavo.kv.specs import MambaSpec
from tests.cache.build import CachedPrefix, config, full, go_on, mamba, manager, place, request


def test_a_request_has_its_states_whatever_its_length() -> None:
    kind = MambaManager(mamba(num_speculative_blocks=2), max_model_len=256, max_chunk_tokens=16)
    assert [kind.num_table_blocks(n) for n in (0, 1, 64, 65, 256)] == [0, 3, 3, 3, 3]
    assert kind.max_blocks(256) == 3
    assert (kind.num_table_tokens(0), kind.num_table_tokens(3)) == (0, NEVER)


def test_states_are_never_shared() -> None:
    kind = MambaManager(mamba(), max_model_len=256, max_chunk_tokens=16)
    assert CachedPrefix(4, [range(4)]).hit(kind, 16) == 0
    assert not kind.caches_prefixes


def test_a_model_with_states_runs_without_prefix_caching() -> None:
    cache = manager(full(4), mamba())
    assert not cache.enable_caching
    first = request("a", range(20))
    assert [len(table) for table in place(cache, first)] == [5, 1]
    assert [go_on(cache, first, 1), go_on(cache, first, 4)] == [([7], []), ([8], [])]
    cache.free(first)
    assert cache.counts().cached == 0
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 0


def aligned(block_size: int = 4) -> MambaSpec:
    return msgspec.structs.replace(mamba(block_size), cache_mode="align")


def test_the_block_of_the_last_token_is_all_that_is_needed() -> None:
    kind = AlignedMambaManager(aligned(), max_model_len=256, max_chunk_tokens=16)
    assert [kind.num_dropped_blocks(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert [kind.next_drop(n) for n in (0, 1, 2)] == [5, 9, 13]
    assert [kind.max_blocks(n) for n in (4, 5, 100)] == [1, 1, 1]
    assert [kind.num_new_blocks(held, 20) for held in (0, 4, 5)] == [1, 1, 0]
    assert kind.num_new_blocks(1, 20, 1) == 2


def test_only_borders_worth_returning_to_get_a_block() -> None:
    kind = AlignedMambaManager(aligned(), max_model_len=256, max_chunk_tokens=16)
    assert list(kind.places_to_fill(0, 6, (), 0)) == [5]
    assert list(kind.places_to_fill(0, 6, (16, 8), 0)) == [1, 3, 5]
    assert list(kind.places_to_fill(2, 6, (16, 8), 0)) == [3, 5]
    assert list(kind.places_to_fill(2, 6, (), 8)) == [3, 5]
    assert list(kind.places_to_fill(6, 6, (16, 8), 8)) == []
    assert list(kind.blocks_to_cache(0, 6, (16, 8), 0)) == [1, 3, 4, 5]
    assert list(kind.blocks_to_cache(0, 5, (20, 0), 8)) == [1, 3, 4]


def test_a_hit_needs_the_one_block_that_ends_there() -> None:
    kind = AlignedMambaManager(aligned(), max_model_len=256, max_chunk_tokens=16)
    prefix = CachedPrefix(8, [[1, 4, 6], [1, 4]])
    assert [prefix.hit(kind, limit) for limit in (32, 20, 19, 8, 7)] == [20, 20, 8, 8, 0]
    assert prefix.hit(kind, 32, alignment=8) == 8


def test_a_prompt_is_replayed_from_its_last_border() -> None:
    cache = manager(full(4), aligned())
    assert cache.enable_caching
    first = request("a", range(22))
    assert place(cache, first, 10) == ([1, 2, 3], [0, 0, 4])
    assert go_on(cache, first, 12) == ([5, 6, 7], [0, 8, 9])
    # Tokens 0 to 19 are in whole blocks; the state after token 19 lies in block 8.
    second = request("b", [*range(22), 77])
    found = cache.get_computed_blocks(second)
    assert (found.num_tokens, found.block_ids) == (20, ([1, 2, 3, 5, 6], [0, 0, 0, 0, 8]))
    place(cache, second)
    cache.free(first)
    cache.free(second)
    assert cache.counts().used == 0


def test_where_requests_part_the_next_one_keeps_its_state() -> None:
    cache = manager(full(4), aligned())
    place(cache, request("a", range(30)))
    parted = [*range(16), *range(50, 64)]
    found = cache.get_computed_blocks(request("b", parted))
    assert (found.num_tokens, found.junction) == (0, 16)
    place(cache, request("b", parted))
    assert cache.get_computed_blocks(request("c", [*range(16), *range(70, 84)])).num_tokens == 16


def test_without_room_only_what_is_needed_is_taken() -> None:
    cache = manager(full(4), aligned(), num_blocks=8)
    first = request("a", range(22))
    assert place(cache, first) == ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 7])
    assert cache.get_computed_blocks(request("b", range(22))).num_tokens == 0


def test_while_generating_a_border_that_was_reached_is_kept() -> None:
    cache = manager(full(4), aligned())
    first = request("a", range(6))
    place(cache, first)
    for _ in range(6):
        go_on(cache, first, 1)
    cache.free(first)
    assert cache.get_computed_blocks(request("b", [*first.token_ids.tolist()[:12], 5])).num_tokens == 12


def test_a_child_gets_a_copy_of_the_running_state() -> None:
    cache = manager(full(4), aligned())
    place(cache, request("a", range(10)))
    fork = cache.fork("a", 10, 10)
    assert fork is not None
    assert [len(sources) for sources in fork.copied] == [1, 1]
    child = request("b", [*range(10), 60, 61, 62, 63])
    blocks = cache.allocate_slots(child, 4, fork)
    assert blocks is not None
    assert blocks[1][:2] == [0, 0]
    assert all(blocks[1][2:])  # the copy, and the block of the last token
    assert cache.fork("a", 9, 10) is None
    cache.check_integrity()


def test_without_a_prefix_cache_no_state_is_kept_for_it() -> None:
    """Whatever interval was asked for: nobody could find it."""
    for interval in (None, 0, 4):
        cache = KVCacheManager(config(aligned()), enable_caching=False, retention_interval=interval)
        place(cache, request("a", range(20)))
        assert cache.block_ids("a") == ([0, 0, 0, 0, 1],)
