from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.sliding_window import SlidingWindowManager
from tests.cache.build import CachedPrefix, window


def kind(size: int, block_size: int = 4) -> SlidingWindowManager:
    return SlidingWindowManager(window(size, block_size), max_model_len=256, max_chunk_tokens=16)


@pytest.mark.parametrize(
    ("size", "num_computed", "dropped"),
    [(8, 7, 0), (8, 10, 0), (8, 11, 1), (8, 14, 1), (8, 15, 2), (9, 11, 0), (9, 12, 1), (1, 4, 1), (5, 0, 0)],
)
def test_blocks_wholly_left_of_the_next_tokens_window_are_dropped(size: int, num_computed: int, dropped: int) -> None:
    assert kind(size).num_dropped_blocks(num_computed) == dropped


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 200))
def test_dropping_follows_the_definition(size: int, block_size: int, num_computed: int) -> None:
    """A block may go when its last position is left of the first one that the next token reads."""
    first_read = max(0, num_computed - size + 1)
    by_definition = sum(1 for block in range(250) if (block + 1) * block_size <= first_read)
    managed = kind(size, block_size)
    assert managed.num_dropped_blocks(num_computed) == by_definition
    threshold = managed.next_drop(by_definition)
    assert threshold > num_computed
    assert managed.num_dropped_blocks(threshold - 1) == by_definition
    assert managed.num_dropped_blocks(threshold) == by_definition + 1


@pytest.mark.parametrize(
    ("cached", "max_tokens", "hit"),
    [
        ((), 40, 0),
        ((6, 7), 40, 32),  # window 8, blocks of 4: the 7 tokens before position 32 lie in two blocks
        ((7,), 40, 0),
        ((2, 3, 6, 7, 9), 40, 32),
        ((2, 3, 6), 40, 16),
        ((2, 3, 6, 7), 31, 16),
        ((0,), 40, 4),  # the run at the start may be shorter: there is nothing before it
        ((0, 1), 40, 8),
        ((0, 2), 40, 4),
        ((1,), 40, 0),
    ],
)
def test_a_hit_needs_the_blocks_that_the_next_token_reads(cached: tuple[int, ...], max_tokens: int, hit: int) -> None:
    assert CachedPrefix(10, [cached]).hit(kind(8), max_tokens) == hit


def test_every_group_must_have_the_blocks() -> None:
    assert CachedPrefix(10, [(2, 3, 6, 7), (2, 3, 7, 8)]).hit(kind(8), 40) == 16


def test_a_hit_ends_on_the_alignment() -> None:
    assert CachedPrefix(10, [range(10)]).hit(kind(8), 40, alignment=12) == 36
    assert CachedPrefix(10, [(3, 4, 6, 7)]).hit(kind(8), 40, alignment=8) == 32
    assert CachedPrefix(10, [(3, 4)]).hit(kind(8), 40, alignment=8) == 0
    assert CachedPrefix(10, [(0,)]).hit(kind(8), 40, alignment=8) == 0


@given(st.integers(1, 20), st.sets(st.integers(0, 9)), st.integers(0, 40), st.sampled_from([1, 2, 3]))
def test_no_longer_hit_exists(size: int, cached: set[int], max_tokens: int, every: int) -> None:
    managed = kind(size)
    alignment = 4 * every

    def usable(tokens: int) -> bool:
        first = min(managed.num_dropped_blocks(tokens), tokens // 4 - 1)
        return all(block in cached for block in range(first, tokens // 4))

    longest = max((tokens for tokens in range(alignment, max_tokens + 1, alignment) if usable(tokens)), default=0)
    assert CachedPrefix(10, [cached]).hit(managed, max_tokens, alignment=alignment) == longest


def test_dense_retention_keeps_what_a_hit_can_end_on() -> None:
    assert list(kind(8).blocks_to_cache(3, 9, (), 4)) == [3, 4, 5, 6, 7, 8]
    # Hits are multiples of 24 tokens, six blocks; a window of 8 reads two blocks before such a place.
    assert list(kind(8).blocks_to_cache(0, 12, (), 24)) == [4, 5, 10, 11]


def test_sparse_retention_keeps_what_is_read_at_boundaries() -> None:
    assert list(kind(8).blocks_to_cache(0, 12, (), 0)) == []
    assert list(kind(8).blocks_to_cache(0, 12, (40, 20), 0)) == [3, 4, 8, 9]
    assert list(kind(8).blocks_to_cache(4, 9, (40, 20), 0)) == [4, 8]
    assert list(kind(8).blocks_to_cache(0, 20, (12,), 32)) == [1, 2, 6, 7, 14, 15]
    # A boundary that is still to come counts for blocks that are full now.
    assert list(kind(8).blocks_to_cache(0, 7, (), 32)) == [6]


def test_the_blocks_of_one_request_are_those_of_the_plan() -> None:
    managed = kind(8)
    assert managed.max_blocks(100) == window(8).max_blocks(100, chunk_tokens=16) == 7
    assert managed.max_blocks(9) == 3
    assert managed.num_table_blocks(100) == 25
