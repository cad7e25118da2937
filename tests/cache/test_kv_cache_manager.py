"""The door: allocate, drop, free, admit, retain. Long histories beside a slow model: tests/machines."""

from __future__ import annotations

import random
import time
from array import array
from typing import Any

import pytest

from octavo.cache import prefix_writer
from octavo.cache.contents import BlockContents, block_contents
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.request_blocks import BlockCounts
from octavo.errors import ConfigError, InvariantError
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import LayerSpec
from octavo.request import Request
from tests.cache.build import config, full, go_on, local, manager, place, request, window


def live_blocks(cache: KVCacheManager, name: str) -> list[int]:
    """Blocks that the request holds now, by group."""
    return [sum(1 for block in table if block) for table in cache.block_ids(name)]


# -- allocating ----------------------------------------------------------------------------------------------------


def test_the_first_allocation_returns_the_table_and_later_ones_what_is_new() -> None:
    cache = manager(full(4), full(4))
    asked = request("a", range(10))
    assert place(cache, asked, 6) == ([1, 2], [3, 4])
    assert go_on(cache, asked, 2) == ([], [])
    assert go_on(cache, asked, 2) == ([5], [6])
    assert cache.block_ids("a") == ([1, 2, 5], [3, 4, 6])
    assert cache.counts() == BlockCounts(free=93, cached=0, used=6)


def test_a_decode_step_takes_a_block_only_at_a_border() -> None:
    cache = manager(full(4))
    asked = request("a", range(4))
    place(cache, asked)
    assert [go_on(cache, asked, 1)[0] for _ in range(9)] == [[2], [], [], [], [3], [], [], [], [4]]


def test_what_is_returned_at_admission_is_not_the_table_itself() -> None:
    cache = manager(full(4))
    asked = request("a", range(6))
    blocks = place(cache, asked)
    go_on(cache, asked, 6)
    assert blocks == ([1, 2],)


def test_without_room_nothing_changes() -> None:
    cache = manager(full(4), full(4), num_blocks=6)
    first = request("a", range(8))
    place(cache, first)
    before = (cache.line(), cache.counts(), cache.block_ids("a"))
    second = request("b", [9] * 4)
    assert cache.allocate_slots(second, 4, cache.get_computed_blocks(second)) is None
    assert cache.block_ids("b") == ([], [])
    assert cache.allocate_slots(first, 1) is None
    assert (cache.line(), cache.counts(), cache.block_ids("a")) == before
    cache.check_integrity()
    cache.free(first)
    assert place(cache, second) == ([5], [2])


def test_blocks_left_of_the_window_come_back_even_if_the_rest_fails() -> None:
    cache = manager(full(4), window(4), num_blocks=9)
    asked = request("a", range(16))
    place(cache, asked)
    assert cache.counts().used == 8
    while asked.num_tokens < 29:
        asked.append_token(1)
    assert cache.allocate_slots(asked, 13) is None  # needs 4 + 4; 3 of the window's 4 blocks come back
    assert cache.block_ids("a")[1] == [0, 0, 0, 8]
    assert cache.counts().used == 5
    assert cache.allocate_slots(asked, 1) is not None


def test_some_blocks_can_be_left_to_others() -> None:
    cache = manager(full(4), num_blocks=6)
    first = request("a", range(4))
    computed = cache.get_computed_blocks(first)
    assert cache.allocate_slots(first, 4, computed, leave_free=5) is None
    assert cache.allocate_slots(first, 4, computed, leave_free=4) is not None
    first.num_computed_tokens = 3
    assert cache.allocate_slots(first, 1, leave_free=99) == ([],)
    first.num_computed_tokens = 4
    first.append_token(1)
    assert cache.allocate_slots(first, 1, leave_free=4) is None
    assert cache.allocate_slots(first, 1, leave_free=3) == ([2],)


def test_blocks_of_a_hit_are_counted_when_nobody_uses_them() -> None:
    cache = manager(full(4), num_blocks=5)
    first = request("a", range(12))
    place(cache, first)
    cache.free(first)
    # Two of four available blocks are the hit; of the other two, two are needed, then three.
    assert cache.allocate_slots(*asking(cache, "b", [*range(8), *[7] * 9])) is None
    assert place(cache, request("c", [*range(8), *[7] * 8]))[0][:2] == [1, 2]
    assert cache.counts() == BlockCounts(free=0, cached=0, used=4)
    # Blocks in use cost nothing, yet there is no block for the rest.
    assert cache.allocate_slots(*asking(cache, "d", [*range(8), 3])) is None


def asking(cache: KVCacheManager, name: str, tokens: list[int]) -> tuple[Request, int, Any]:
    asked = request(name, tokens)
    computed = cache.get_computed_blocks(asked)
    return asked, asked.num_tokens - computed.num_tokens, computed


def test_a_stale_hit_is_refused() -> None:
    cache = manager(full(4), num_blocks=6)
    first = request("a", range(12))
    place(cache, first)
    cache.free(first)
    late = asking(cache, "b", list(range(12)))
    place(cache, request("c", [5] * 16))
    with pytest.raises(InvariantError, match="the hit of request b is stale"):
        cache.allocate_slots(*late)


# -- freeing -------------------------------------------------------------------------------------------------------


def test_a_request_frees_its_tail_first_group_by_group() -> None:
    cache = manager(full(4), full(4), num_blocks=9)
    asked = request("a", range(9))
    place(cache, asked)  # groups [1, 2, 3] and [4, 5, 6]; the third block of each is not full
    cache.free(asked)
    assert cache.line() == [6, 3, 7, 8, 2, 1, 5, 4]
    assert cache.counts() == BlockCounts(free=4, cached=4, used=0)


def test_freeing_twice_or_a_stranger_does_nothing() -> None:
    cache = manager(full(4))
    asked = request("a", range(9))
    place(cache, asked)
    cache.free(asked)
    line = cache.line()
    cache.free(asked)
    cache.free(request("b", [1]))
    assert cache.line() == line


def test_shared_blocks_stay_with_the_other_request() -> None:
    cache = manager(full(4))
    first, second = request("a", range(12)), request("b", range(12))
    place(cache, first)
    place(cache, second)
    cache.free(first)
    cache.check_integrity()
    assert cache.counts().used == 3
    assert cache.block_ids("b")[0][:2] == [1, 2]


def test_a_preempted_request_finds_its_blocks_again() -> None:
    cache = manager(full(4), window(8))
    asked = request("a", range(20))
    place(cache, asked)
    go_on(cache, asked, 5)
    cache.free(asked)
    asked.num_computed_tokens = 0
    asked.num_preemptions = 1
    assert cache.get_computed_blocks(asked).num_tokens == 24
    place(cache, asked)
    assert go_on(cache, asked, 1) is not None
    assert cache.prefix_stats().query_tokens == 20


def test_reset_needs_an_idle_cache() -> None:
    cache = manager(full(4), window(8))
    asked = request("a", range(20))
    place(cache, asked)
    assert not cache.reset_prefix_cache()
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 16
    cache.free(asked)
    assert cache.reset_prefix_cache()
    assert cache.counts() == BlockCounts(free=99, cached=0, used=0)
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 0
    cache.check_integrity()


def test_a_failed_step_is_taken_back() -> None:
    cache = manager(full(4), window(8))
    asked = request("a", range(20))
    place(cache, asked, 10)
    go_on(cache, asked, 10)
    cache.uncache(asked, 10)
    cache.check_integrity()
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 8
    # Run again, the blocks are offered again.
    asked.num_computed_tokens = 10
    go_on(cache, asked, 10)
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 16
    cache.uncache(asked, 20)
    cache.uncache(request("stranger", [1]), 0)
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 16


# -- statistics ----------------------------------------------------------------------------------------------------


def test_hits_are_counted_once_at_first_admission() -> None:
    cache = manager(full(4), num_blocks=8)
    first = request("a", range(12))
    place(cache, first)
    second = request("b", range(14))
    for _ in range(3):
        cache.get_computed_blocks(second)
    place(cache, second)
    assert (cache.prefix_stats().query_tokens, cache.prefix_stats().hit_tokens) == (26, 12)
    # A request that must compute every token is not looked up, and so not counted.
    assert cache.allocate_slots(request("c", range(4)), 4) is not None
    assert (cache.prefix_stats().query_tokens, cache.prefix_stats().hit_tokens) == (26, 12)
    assert cache.keys_stored == 4
    assert cache.keys_evicted == 0
    assert list(cache.request_ids()) == ["a", "b", "c"]
    assert [cache.is_cached(block) for block in (1, 3, 4, 5)] == [True, True, False, True]


# -- admission and reservation -------------------------------------------------------------------------------------


def test_a_whole_prompt_must_fit_before_its_first_chunk_runs() -> None:
    for whole, admitted in ((True, False), (False, True)):
        cache = KVCacheManager(config(full(4), num_blocks=5), enable_caching=True, admit_whole_prompt=whole)
        asked = request("a", range(17))
        assert (cache.allocate_slots(asked, 4, cache.get_computed_blocks(asked)) is not None) == admitted
        short = request("b", range(100, 112))
        assert cache.allocate_slots(short, 4, cache.get_computed_blocks(short)) is not None


def test_the_whole_prompt_of_a_windowed_group_is_what_it_holds_at_once() -> None:
    cache = KVCacheManager(
        config(window(8), num_blocks=60, max_chunk_tokens=8), enable_caching=True, admit_whole_prompt=True
    )
    long = request("a", range(100))
    nothing = cache.get_computed_blocks(long)
    assert cache.whole_prompt_blocks(long, nothing) == window(8).max_blocks(100, chunk_tokens=8) == 5
    for num_tokens in (8, *[8] * 11, 4):
        place(cache, long, 8) if not long.num_computed_tokens else go_on(cache, long, num_tokens)
    # After a hit of 96 tokens, of which the window needs two blocks, one more block is all.
    again = request("b", range(100))
    computed = cache.get_computed_blocks(again)
    assert (computed.num_tokens, cache.whole_prompt_blocks(again, computed)) == (96, 1)
    # A longer one still needs what it holds at once, beside the two of its hit.
    longer = request("c", range(200))
    assert cache.whole_prompt_blocks(longer, cache.get_computed_blocks(longer)) == 5 - 2


@pytest.mark.parametrize(
    ("specs", "num_tokens", "needed"),
    [([full(4)], 17, 5), ([full(4), window(8)], 100, 25 + 5), ([local(16), full(4)], 33, 6 + 9)],
)
def test_what_can_ever_fit(specs: list[LayerSpec], num_tokens: int, needed: int) -> None:
    cache = manager(*specs, num_blocks=needed + 1, max_chunk_tokens=8)
    assert cache.max_blocks_of(num_tokens) == needed
    assert cache.can_ever_fit(num_tokens)
    assert not manager(*specs, num_blocks=needed, max_chunk_tokens=8).can_ever_fit(num_tokens)
    assert cache.max_growth(0, num_tokens) >= needed - 1


def run_alone(cache: KVCacheManager, num_tokens: int, chunk: int, rng: random.Random) -> int:
    """Run one request of `num_tokens` in steps of at most `chunk`; the most blocks that it held at once."""
    asked = request("a", [*range(rng.randrange(num_tokens)), *range(1000, 1000 + num_tokens)][:num_tokens])
    computed = cache.get_computed_blocks(asked)
    asked.num_computed_tokens = computed.num_tokens
    most = 0
    while asked.num_computed_tokens < num_tokens:
        num_new = min(rng.randint(1, chunk) if rng.random() < 0.5 else chunk, num_tokens - asked.num_computed_tokens)
        admitting = "a" not in cache.request_ids()
        blocks = cache.allocate_slots(asked, num_new, computed if admitting else None)
        assert blocks is not None, f"no room at {asked.num_computed_tokens}"
        asked.num_computed_tokens += num_new
        most = max(most, cache.counts().used)
        for held, kind in zip(live_blocks(cache, "a"), cache.managers, strict=True):
            assert held <= kind.max_blocks(num_tokens)
    cache.free(asked)
    return most


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 200])
@pytest.mark.parametrize(
    "specs",
    [
        {"layers.0": full(4), "layers.1": window(9), "layers.2": window(9)},
        {"layers.0": window(16), "layers.1": window(5)},
        {"layers.0": local(12), "layers.1": full(4), "layers.2": full(4)},
        {"layers.0": local(10), "layers.1": window(30)},
    ],
    ids=["full+window", "two windows", "local+full", "odd chunk"],
)
def test_a_request_of_full_length_never_fails_on_exactly_the_planned_pool(
    specs: dict[str, LayerSpec], chunk: int
) -> None:
    options = PlanOptions(max_model_len=200, max_num_batched_tokens=200, max_chunk_tokens=chunk)
    figures = plan_kv_cache([specs], [10**6], options).figures
    num_blocks = sum(figures.blocks_per_request) + 1
    [planned] = plan_kv_cache([specs], [num_blocks * figures.ranks[0].bytes_per_block], options).configs
    assert planned.num_blocks == num_blocks
    rng = random.Random(chunk)
    cache = KVCacheManager(planned, enable_caching=True)
    assert cache.can_ever_fit(200)
    # Random steps, several times over, so that later rounds meet what earlier ones left in the cache.
    most = max(run_alone(cache, 200, chunk, rng) for _ in range(8))
    assert most <= num_blocks - 1


# -- retention -----------------------------------------------------------------------------------------------------


def cached_places(cache: KVCacheManager, name: str, group: int) -> list[int]:
    return [place for place, block in enumerate(cache.block_ids(name)[group]) if cache.is_cached(block)]


def test_dense_retention_keeps_every_block() -> None:
    cache = manager(full(4), window(8))
    place(cache, request("a", range(30)))
    assert [cached_places(cache, "a", group) for group in (0, 1)] == [list(range(7)), list(range(7))]


def test_retention_0_keeps_the_replay_boundary_of_the_prompt() -> None:
    cache = manager(full(4), window(8), retention_interval=0)
    asked = request("a", range(30))
    place(cache, asked)
    # A replay of 30 tokens can go on after 28: blocks 5 and 6.
    assert [cached_places(cache, "a", group) for group in (0, 1)] == [list(range(7)), [5, 6]]
    go_on(cache, asked, 20)
    assert cached_places(cache, "a", 0) == list(range(12))
    assert cached_places(cache, "a", 1) == [5, 6]
    assert cache.get_computed_blocks(request("b", range(30))).num_tokens == 28


def test_retention_0_keeps_the_junction_where_requests_part() -> None:
    cache = manager(full(4), window(8), retention_interval=0)
    place(cache, request("a", range(30)))
    parted = request("b", [*range(18), *[7] * 20])
    computed = cache.get_computed_blocks(parted)
    assert (computed.num_tokens, computed.junction) == (0, 16)
    place(cache, parted)
    assert cached_places(cache, "b", 1) == [2, 3, 7, 8]
    # The third request that parts there goes on from the junction.
    assert cache.get_computed_blocks(request("c", [*range(18), *[8] * 20])).num_tokens == 16


def test_a_retention_interval_keeps_its_multiples_too() -> None:
    cache = manager(full(4), window(8), retention_interval=16)
    place(cache, request("a", range(46)))
    assert cached_places(cache, "a", 1) == [2, 3, 6, 7, 9, 10]
    with_one_more = request("b", [*range(34), 1])
    assert cache.get_computed_blocks(with_one_more).num_tokens == 32


@pytest.mark.parametrize("interval", [-4, 6, 1])
def test_an_impossible_interval_is_refused_with_what_is_possible(interval: int) -> None:
    with pytest.raises(ConfigError, match=f"retention interval is {interval} tokens; .* multiples of 4 tokens"):
        manager(full(4), window(8), retention_interval=interval)
    KVCacheManager(config(full(4)), enable_caching=False, retention_interval=interval)


def test_without_caching_nothing_is_kept_or_found() -> None:
    cache = KVCacheManager(config(full(4), window(8)), enable_caching=False)
    asked = request("a", range(30))
    place(cache, asked)
    go_on(cache, asked, 1)
    cache.free(asked)
    assert cache.counts() == BlockCounts(free=99, cached=0, used=0)
    assert cache.get_computed_blocks(request("b", range(30))).num_tokens == 0
    assert cache.prefix_stats().query_tokens == 0


def test_a_model_without_cached_layers_runs() -> None:
    cache = KVCacheManager(config(), enable_caching=True)
    asked = request("a", range(30))
    assert place(cache, asked) == ()
    assert go_on(cache, asked, 1) == ()
    assert cache.can_ever_fit(10**6)
    cache.free(asked)


# -- cost ----------------------------------------------------------------------------------------------------------


def test_each_block_is_read_once_and_a_decode_step_looks_at_no_more_than_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bytes] = []
    right = PrefixCache.extend_by_one

    def many(token_ids: array[int], size: int, first: int, stop: int) -> BlockContents:
        contents = block_contents(token_ids, size, first, stop)
        read.append(contents.token_bytes)
        return contents

    def one(self: PrefixCache, node: int, tokens: bytes) -> int:
        read.append(tokens)
        return right(self, node, tokens)

    monkeypatch.setattr(prefix_writer, "block_contents", many)
    monkeypatch.setattr(PrefixCache, "extend_by_one", one)
    cache = manager(full(4), window(8))
    asked = request("a", range(40))
    place(cache, asked, 16)
    go_on(cache, asked, 24)
    for _ in range(30):
        go_on(cache, asked, 1)
    assert [len(tokens) // 16 for tokens in read] == [4, 6, 1, 1, 1, 1, 1, 1, 1]
    assert b"".join(read) == asked.token_ids[: 17 * 4].tobytes()


def test_a_decode_step_costs_microseconds_and_does_not_grow_with_the_sequence() -> None:
    """Best of some runs of 64 steps; the bound is some ten times what they take."""
    cache = KVCacheManager(
        config(full(16), window(64, block_size=16), num_blocks=20_000, max_model_len=10**6), enable_caching=True
    )
    best = {}
    for length in (500, 100_000):
        asked = request(str(length), range(length))
        place(cache, asked)
        best[length] = 1.0
        for _ in range(8):
            started = time.thread_time()
            for _ in range(64):
                asked.append_token(1)
                cache.allocate_slots(asked, 1)
                asked.num_computed_tokens += 1
            best[length] = min(best[length], (time.thread_time() - started) / 64)
    assert best[500] < 20e-6, best
    assert best[100_000] < 20e-6, best


def test_a_long_prompt_costs_less_than_a_millisecond() -> None:
    """8,192 tokens: look up, allocate, free; cold and hit. Best of some runs, bound some three times what they take."""
    cache = KVCacheManager(
        config(full(16), num_blocks=20_000, max_model_len=8192, max_chunk_tokens=8192), enable_caching=True
    )
    best = {"cold": 1.0, "hit": 1.0}
    for number in range(20):
        for kind in best:
            asked = request(f"{number} {kind}", range(number, number + 8192))
            started = time.thread_time()
            computed = cache.get_computed_blocks(asked)
            assert cache.allocate_slots(asked, 8192 - computed.num_tokens, computed) is not None
            cache.free(asked)
            best[kind] = min(best[kind], time.thread_time() - started)
            assert computed.num_tokens == (0 if kind == "cold" else 8176)
    assert best["cold"] < 1.2e-3, best
    assert best["hit"] < 1.0e-3, best
