from __future__ import annotations

import math

import msgspec
import pytest

from octavo.kv.figures import Counts, block_sizes, plan_figures
from octavo.kv.specs import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)
STATE = MambaSpec(block_size=40, shapes=((4, 256),), dtypes=("bfloat16",))
CROSS = CrossAttentionSpec(block_size=6, num_kv_heads=2, head_size=64, dtype="bfloat16", max_encoder_tokens=100)


def groups_of(*specs: LayerSpec) -> list[KVCacheGroupSpec]:
    return [KVCacheGroupSpec(layer_names=(str(i),), spec=spec) for i, spec in enumerate(specs)]


def counts(*, count_null_block: bool = False) -> Counts:
    return Counts(
        num_blocks=200,
        max_model_len=1000,
        max_chunk_tokens=64,
        blocks_per_request=(63, 7),
        count_null_block=count_null_block,
    )


def test_figures_of_two_stages() -> None:
    groups = [
        KVCacheGroupSpec(layer_names=("a", "c"), spec=FULL),
        KVCacheGroupSpec(layer_names=("b", "d"), spec=WINDOW),
    ]
    figures = plan_figures(
        counts(),
        groups,
        specs_by_rank=[{"a": FULL, "b": WINDOW, "d": WINDOW}, {"c": FULL}],
        available_bytes=[4_000_000, 3_000_000],
        block_bytes=[16384, 8192],
        scheduler_block_size=16,
        hash_block_size=16,
    )
    assert (figures.num_blocks, figures.usable_blocks) == (200, 199)
    assert figures.max_concurrency == 199 / 70
    assert figures.capacity_tokens == math.floor(199 * 1000 / 70)
    first, second = figures.ranks
    assert (first.pool_bytes, first.unused_bytes) == (200 * 16384, 4_000_000 - 200 * 16384)
    assert (first.fixed_bytes, first.bytes_per_token) == (2 * 32 * 512, 512)
    assert first.ideal_bytes == first.fixed_bytes + 1000 * first.bytes_per_token
    assert first.one_request_bytes == 70 * 16384
    assert [group.num_layers for group in first.groups] == [1, 2]
    assert [group.reserved_bytes for group in first.groups] == [63 * 16384, 7 * 16384]
    assert [group.ideal_bytes for group in first.groups] == [512000, 32768]
    assert (second.fixed_bytes, second.bytes_per_token) == (0, 512)
    assert [group.num_layers for group in second.groups] == [1, 0]


def test_the_null_block_counts_only_where_asked() -> None:
    def figures(*, count: bool) -> float:
        return plan_figures(
            counts(count_null_block=count),
            groups_of(FULL, WINDOW),
            specs_by_rank=[{"0": FULL, "1": WINDOW}],
            available_bytes=[200 * 8192],
            block_bytes=[8192],
            scheduler_block_size=16,
            hash_block_size=16,
        ).max_concurrency

    assert (figures(count=False), figures(count=True)) == (199 / 70, 200 / 70)


@pytest.mark.parametrize(
    ("specs", "caching", "expected"),
    [
        ((FULL, WINDOW), True, (16, 16)),
        ((FULL, msgspec.structs.replace(WINDOW, block_size=24)), True, (48, 8)),
        ((FULL, msgspec.structs.replace(WINDOW, block_size=24)), False, (48, 48)),
        ((FULL, STATE), True, (80, 80)),
        ((FULL, msgspec.structs.replace(STATE, cache_mode="align")), True, (80, 8)),
        ((FULL, CROSS), True, (48, 16)),
        ((CROSS,), True, (6, 6)),
        ((), True, (1, 0)),
    ],
)
def test_block_sizes(specs: tuple[LayerSpec, ...], caching: bool, expected: tuple[int, int]) -> None:
    assert block_sizes(groups_of(*specs), enable_prefix_caching=caching, context_parallel_size=1) == expected


def test_blocks_of_spread_tokens_cover_more_of_them() -> None:
    spread = msgspec.structs.replace(FULL, context_parallel_size=2)
    two = groups_of(spread, WINDOW)
    assert block_sizes(two, enable_prefix_caching=True, context_parallel_size=2) == (32, 16)
    assert block_sizes(groups_of(WINDOW), enable_prefix_caching=True, context_parallel_size=2) == (32, 32)
