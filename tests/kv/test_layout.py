from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import DTYPE_BYTES
from octavo.errors import LayoutError
from octavo.kv.layout import (
    LayerPlacement,
    block_bytes,
    placements,
    pool_tensors,
    rank_groups,
    slot_bytes,
    slot_of,
    strided_view,
)
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)
from tests.strategies import layer_specs

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
STATE = MambaSpec(block_size=512, shapes=((4, 100),), dtypes=("float32",), page_size_padded=8192)


def place(spec: LayerSpec) -> LayerPlacement:
    return LayerPlacement(layer_name="layers.0", group_index=0, slot_index=0, tensor_index=0, spec=spec)


def test_a_slot_follows_the_block_table() -> None:
    assert slot_of([37, 12, 44], 7, 16) == 37 * 16 + 7
    assert slot_of([37, 12, 44], 16, 16) == 12 * 16
    assert slot_of([37, 12, 44], 47, 16) == 44 * 16 + 15


def test_slots_of_padded_pages_keep_their_distance() -> None:
    padded = msgspec.structs.replace(FULL, page_size_padded=10000)
    assert slot_bytes(place(padded), 16) == (10000, 10512)
    assert slot_bytes(place(padded), 15) == (15 * 512, 16 * 512)
    assert block_bytes(place(padded), 3) == (30000, 38192)


def test_a_state_has_a_block_but_no_slots() -> None:
    assert block_bytes(place(STATE), 2) == (16384, 16384 + 1600)
    with pytest.raises(LayoutError, match=r"layers\.0 keeps one state per block"):
        slot_bytes(place(STATE), 2)


@given(layer_specs(kinds=("full", "sliding_window", "mla")), st.integers(1, 5), st.integers(0, 3))
def test_views_address_the_bytes_of_slots_and_nothing_twice(
    spec: AttentionSpec | MLASpec, blocks: int, padding: int
) -> None:
    """Every element of K and V by its strides: inside its token's byte range, all of the range, each once.

    V of a latent is a part of K, so K alone is counted.
    """
    itemsize = DTYPE_BYTES[spec.dtype]
    if padding:
        spec = msgspec.structs.replace(spec, page_size_padded=spec.content_bytes + padding * itemsize)
    view = strided_view(spec, blocks)
    for slot in range(blocks * spec.block_size):
        block, offset = divmod(slot, spec.block_size)
        start, stop = slot_bytes(place(spec), slot)
        sides = [(view.key_offset, view.key_shape), (view.value_offset, view.value_shape)]
        seen = [
            itemsize * (first + block * view.strides[0] + offset * view.strides[1] + head * view.strides[2] + i)
            for first, shape in (sides[:1] if isinstance(spec, MLASpec) else sides)
            for head in range(shape[2])
            for i in range(shape[3])
        ]
        assert sorted(seen) == list(range(start, stop, itemsize))


@given(layer_specs(kinds=("full", "sliding_window", "mla")), st.integers(1, 5))
def test_slots_lie_in_order_and_do_not_overlap(spec: LayerSpec, blocks: int) -> None:
    ranges = [slot_bytes(place(spec), slot) for slot in range(blocks * spec.block_size)]
    assert all(first[1] <= second[0] for first, second in pairwise(ranges))
    assert ranges[-1][1] <= blocks * spec.page_bytes


def test_v_is_the_leading_part_of_a_latent() -> None:
    latent = MLASpec(block_size=16, latent_size=576, value_size=512, dtype="bfloat16")
    view = strided_view(latent, 3)
    assert (view.key_shape, view.value_shape) == ((3, 16, 1, 576), (3, 16, 1, 512))
    assert view.strides == (16 * 576, 576, 576, 1)
    assert (view.key_offset, view.value_offset, view.dtype) == (0, 0, "bfloat16")
    assert strided_view(msgspec.structs.replace(latent, value_size=None), 3).value_shape == (3, 16, 1, 576)


def test_views_need_plain_k_and_v_and_whole_elements() -> None:
    packed = MLASpec(block_size=64, latent_size=576, dtype="uint8", packed_token_bytes=656)
    for spec in (packed, STATE):
        with pytest.raises(LayoutError, match="no plain K and V"):
            strided_view(spec, 4)
    for field in ("scale_bytes", "packed_head_bytes"):
        with pytest.raises(LayoutError, match="no plain K and V"):
            strided_view(msgspec.structs.replace(FULL, **{field: 8}), 4)
    with pytest.raises(LayoutError, match="whole elements"):
        strided_view(msgspec.structs.replace(FULL, page_size_padded=8193), 4)


def test_layers_of_two_groups_that_share_a_tensor_are_found_there() -> None:
    window = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)
    layers: dict[str, LayerSpec] = {"a": FULL, "b": FULL, "c": FULL, "d": window}
    options = PlanOptions(max_model_len=64, grouping="vllm")
    config = plan_kv_cache([layers], [2**20], options).configs[0]
    placed = placements(config)
    assert list(placed) == ["a", "b", "c", "d"]
    assert [(p.group_index, p.slot_index, p.tensor_index) for p in placed.values()] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
    ]


def test_a_rank_keeps_empty_groups_so_that_numbers_agree() -> None:
    wide = msgspec.structs.replace(FULL, head_size=128)
    groups = (
        KVCacheGroupSpec(layer_names=("a", "b", "c"), spec=FULL, layer_specs=(FULL, wide, FULL)),
        KVCacheGroupSpec(layer_names=("d",), spec=STATE),
    )
    own = rank_groups(groups, {"b": wide, "c": FULL})
    assert [group.layer_names for group in own] == [("b", "c"), ()]
    assert own[0].layer_specs == (wide, FULL)
    assert own[1].layer_specs is None


def test_tensors_follow_slot_indices_or_stand_by_spec() -> None:
    wide = msgspec.structs.replace(FULL, head_size=128)
    mixed = (KVCacheGroupSpec(layer_names=("a", "b", "c"), spec=FULL, layer_specs=(FULL, wide, FULL)),)
    by_slot = pool_tensors(mixed, 10, equal_side_by_side=False)
    assert [(tensor.size_bytes, tensor.shared_by) for tensor in by_slot] == [
        (81920, ("a",)),
        (163840, ("b",)),
        (81920, ("c",)),
    ]
    by_spec = pool_tensors(mixed, 10, equal_side_by_side=True)
    assert [tensor.shared_by for tensor in by_spec] == [("a",), ("c",), ("b",)]
