from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.chunked_local import ChunkedLocalManager
from tests.cache.build import CachedPrefix, local


def kind(chunk: int, block_size: int = 4) -> ChunkedLocalManager:
    return ChunkedLocalManager(local(chunk, block_size), max_model_len=256, max_chunk_tokens=16)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 200))
def test_dropping_follows_the_definition(chunk: int, block_size: int, num_computed: int) -> None:
    first_read = num_computed // chunk * chunk
    by_definition = sum(1 for block in range(250) if (block + 1) * block_size <= first_read)
    managed = kind(chunk, block_size)
    assert managed.num_dropped_blocks(num_computed) == by_definition
    threshold = managed.next_drop(by_definition)
    assert threshold > num_computed
    assert managed.num_dropped_blocks(threshold - 1) == by_definition
    assert managed.num_dropped_blocks(threshold) > by_definition


@pytest.mark.parametrize(
    ("cached", "max_tokens", "hit"),
    [
        ((), 40, 32),  # chunks of 16: position 32 starts one, so nothing before it is read
        ((), 15, 0),
        ((8,), 40, 36),
        ((8, 9), 40, 40),
        ((9,), 40, 32),
        ((0, 1), 15, 8),
        ((0, 1, 2, 3), 15, 12),
        ((4, 5), 31, 24),
    ],
)
def test_a_hit_needs_the_blocks_of_its_own_chunk(cached: tuple[int, ...], max_tokens: int, hit: int) -> None:
    assert CachedPrefix(10, [cached]).hit(kind(16), max_tokens) == hit


def test_every_group_must_have_the_blocks() -> None:
    assert CachedPrefix(10, [(4, 5, 6), (4, 6)]).hit(kind(16), 31) == 20


@given(
    st.integers(1, 20),
    st.sets(st.integers(0, 9)),
    st.integers(0, 40),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]),
)
def test_no_longer_hit_exists(chunk: int, cached: set[int], max_tokens: int, every: int, num_groups: int) -> None:
    managed = kind(chunk)
    alignment = 4 * every

    def usable(tokens: int) -> bool:
        return all(block in cached for block in range(managed.num_dropped_blocks(tokens), tokens // 4))

    longest = max((tokens for tokens in range(0, max_tokens + 1, alignment) if usable(tokens)), default=0)
    prefix = CachedPrefix(10, [cached] * num_groups)
    assert prefix.hit(managed, max_tokens, alignment=alignment) == longest


def test_every_full_block_is_cached() -> None:
    assert list(kind(16).blocks_to_cache(1, 4, (), 0)) == [1, 2, 3]
