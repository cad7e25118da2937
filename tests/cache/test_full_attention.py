from __future__ import annotations

import pytest

from octavo.cache.full_attention import FullAttentionManager
from tests.cache.build import CachedPrefix, full

KIND = FullAttentionManager(full(4), max_model_len=256, max_chunk_tokens=16)


@pytest.mark.parametrize(
    ("cached", "max_tokens", "hit"),
    [
        ((), 40, 0),
        ((0, 1, 2), 40, 12),
        ((0, 1, 2), 11, 8),
        ((0, 1, 2), 12, 12),
        ((0, 2, 3), 40, 4),
        ((1, 2, 3), 40, 0),
        (range(10), 39, 36),
        (range(10), 3, 0),
    ],
)
def test_a_hit_is_the_run_of_cached_blocks_from_the_start(cached: tuple[int, ...], max_tokens: int, hit: int) -> None:
    assert CachedPrefix(10, [cached]).hit(KIND, max_tokens) == hit


def test_every_group_must_have_the_block() -> None:
    assert CachedPrefix(10, [range(6), range(3)]).hit(KIND, 40) == 12
    assert CachedPrefix(10, [range(3), range(6)]).hit(KIND, 40) == 12
    assert CachedPrefix(10, [range(3), (0, 1, 4)]).hit(KIND, 40) == 8


def test_a_hit_is_rounded_down_to_the_alignment() -> None:
    assert CachedPrefix(10, [range(7)]).hit(KIND, 40, alignment=12) == 24
    assert CachedPrefix(10, [range(2)]).hit(KIND, 40, alignment=12) == 0


def test_nothing_is_ever_dropped_and_every_full_block_is_cached() -> None:
    assert KIND.num_dropped_blocks(1000) == 0
    assert list(KIND.blocks_to_cache(2, 6, (), 0)) == [2, 3, 4, 5]
    assert KIND.max_blocks(33) == KIND.num_table_blocks(33) == 9
    assert KIND.num_table_tokens(9) == 36


def test_growth_is_what_the_table_still_lacks() -> None:
    assert KIND.max_growth(33, 100) == 25 - 9
    assert KIND.max_growth(100, 100) == 0
