from __future__ import annotations

import msgspec
import pytest

from octavo.errors import ConfigError, LayoutError
from octavo.kv.arguments import (
    all_layers,
    check_layout,
    check_numbers,
    check_pages,
    check_ranks,
    check_shared,
    spread,
)
from octavo.kv.specs import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WIDE = msgspec.structs.replace(FULL, head_size=128)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)


def test_numbers_are_at_least_one() -> None:
    check_numbers({"max_model_len": 1, "num_blocks_override": None})
    with pytest.raises(ConfigError, match=r"max_model_len is -2\. It must be at least 1"):
        check_numbers({"max_model_len": -2})


def test_every_rank_has_bytes() -> None:
    check_ranks([{"a": FULL}, {}], [1, 0])
    for specs, available in (([], []), ([{"a": FULL}], []), ([{"a": FULL}], [1, 2])):
        with pytest.raises(ConfigError, match=f"there are {len(specs)} and {len(available)}"):
            check_ranks(specs, available)


@pytest.mark.parametrize(
    "change", [{"block_size": 0}, {"num_kv_heads": 0}, {"head_size": -64}, {"page_size_padded": 8191}]
)
def test_pages_that_cannot_exist_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="Layer a has"):
        check_ranks([{"a": msgspec.structs.replace(FULL, **change)}], [1])


def test_only_kinds_that_keep_every_token_are_spread() -> None:
    layers = {"a": FULL, "b": WINDOW}
    assert spread(layers, 1) is layers
    assert {name: spec.context_parallel_size for name, spec in spread(layers, 4).items()} == {"a": 4, "b": 1}


def test_layers_come_in_rank_order_and_ranks_agree() -> None:
    assert list(all_layers([{"b": FULL, "a": WINDOW}, {"b": FULL}, {"c": FULL}])) == ["b", "a", "c"]
    with pytest.raises(LayoutError, match="Layer b caches something else on rank 1"):
        all_layers([{"b": FULL}, {"b": WIDE}])


def test_sharing_layers_read_a_cached_layer_of_their_rank() -> None:
    check_shared([{"c": "a"}, {}], [{"a": FULL}, {"b": FULL}])
    with pytest.raises(LayoutError, match="Layer c reads the cache of b, which has none on rank 0"):
        check_shared([{"c": "b"}, {}], [{"a": FULL}, {"b": FULL}])
    with pytest.raises(LayoutError, match="Layer a has a cache of its own on rank 0"):
        check_shared([{"a": "a"}], [{"a": FULL}])


def test_layouts_that_are_planned() -> None:
    for layout in ("LBNHC", "NHD"):
        check_layout(layout, reference=False)
    for layout in ("LBHNC", "HND", "LHBNC"):
        check_layout(layout, reference=True)
        with pytest.raises(LayoutError, match=layout):
            check_layout(layout, reference=False)
    with pytest.raises(LayoutError, match="BLHNC"):
        check_layout("BLHNC", reference=True)


def test_a_layout_that_scatters_pages_needs_equal_ones() -> None:
    equal = [KVCacheGroupSpec(layer_names=("a",), spec=FULL), KVCacheGroupSpec(layer_names=(), spec=WIDE)]
    mixed = [KVCacheGroupSpec(layer_names=("a", "b"), spec=FULL, layer_specs=(FULL, WIDE))]
    check_pages("LHBNC", equal)
    check_pages("LBNHC", mixed)
    with pytest.raises(LayoutError, match="8192, 16384 bytes"):
        check_pages("LHBNC", mixed)
