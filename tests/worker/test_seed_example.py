"""The worked example of the seed article, literally: from four layers to the bytes of one token.

L0 and L2 attend to everything, L1 and L3 through a window; block size 16. Group0 = L0, L2 and Group1 = L1, L3, so
Tensor0 is shared by L0 and L1, and Tensor1 by L2 and L3. Token 7 of L0, its logical block 0 mapped to physical block
37, lies in slot 37 * 16 + 7 = 599 of Tensor0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from octavo.attention.backend import AttentionGroup, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.registry import get_backend
from octavo.config import layer_name
from octavo.kv.layout import placements, slot_bytes, slot_of
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.kv_memory import allocate, bind, view

BLOCK_SIZE = 16
NUM_BLOCKS = 64
L0, L1, L2, L3 = (layer_name(i) for i in range(4))
NUM_KV_HEADS, HEAD_SIZE = 2, 8
TOKEN_BYTES = NUM_KV_HEADS * 2 * HEAD_SIZE * 2
"""K and V of one token and layer in bfloat16: 64 bytes."""
PAGE_BYTES = BLOCK_SIZE * TOKEN_BYTES

BACKENDS = ("torch_reference", "numba_cpu")


def seed_specs() -> dict[str, LayerSpec]:
    sizes = {"block_size": BLOCK_SIZE, "num_kv_heads": NUM_KV_HEADS, "head_size": HEAD_SIZE, "dtype": "bfloat16"}
    full, window = FullAttentionSpec(**sizes), SlidingWindowSpec(**sizes, window=32)
    return {L0: full, L1: window, L2: full, L3: window}


def seed_plan() -> KVCachePlan:
    options = PlanOptions(max_model_len=64, max_num_batched_tokens=64)
    return plan_kv_cache([seed_specs()], [2 * NUM_BLOCKS * PAGE_BYTES], options)


class Rank(NamedTuple):
    plan: KVCachePlan
    tensors: list[torch.Tensor]
    views: dict[str, KVCacheView]
    layers: dict[str, AttentionLayer]
    groups: list[AttentionGroup]


def seed_rank(backend_name: str = "torch_reference") -> Rank:
    plan = seed_plan()
    config = plan.configs[0]
    backend = get_backend(backend_name, "cpu", 1)
    layers = {
        name: AttentionLayer(
            name, spec=spec, num_heads=2, scale=1.0, backend=backend, window=getattr(spec, "window", None)
        )
        for name, spec in seed_specs().items()
    }
    tensors = allocate(config, torch.device("cpu"))
    views = view(config, tensors)
    return Rank(plan, tensors, views, layers, bind(config, views, layers))


def seed_table() -> BlockTable:
    """A request of 48 computed tokens in Group0: three blocks, the first of them block 37."""
    table = BlockTable(num_rows=4, block_size=BLOCK_SIZE, max_blocks=4)
    table.set_row(2, [37, 12, 44])
    return table


def test_the_plan_is_the_articles_grouping() -> None:
    config = seed_plan().configs[0]
    assert [group.layer_names for group in config.groups] == [(L0, L2), (L1, L3)]
    assert [set(tensor.shared_by) for tensor in config.tensors] == [{L0, L1}, {L2, L3}]
    assert config.num_blocks == NUM_BLOCKS
    assert [tensor.size_bytes for tensor in config.tensors] == [NUM_BLOCKS * PAGE_BYTES] * 2


def test_48_tokens_are_3_blocks() -> None:
    assert len({position // BLOCK_SIZE for position in range(48)}) == 3
    assert seed_specs()[L0].max_blocks(48, chunk_tokens=48) == 3
    assert seed_table().num_blocks[2] == 3


def test_token_7_is_in_slot_599() -> None:
    assert (7 // BLOCK_SIZE, 7 % BLOCK_SIZE) == (0, 7)
    assert seed_table().slots(np.array([2]), np.array([7])).tolist() == [37 * 16 + 7] == [599]
    assert slot_of([37, 12, 44], 7, BLOCK_SIZE) == 599


def test_slot_599_is_a_byte_range_of_tensor0() -> None:
    place = placements(seed_plan().configs[0])[L0]
    assert (place.group_index, place.slot_index, place.tensor_index) == (0, 0, 0)
    assert slot_bytes(place, 599) == (37 * PAGE_BYTES + 7 * TOKEN_BYTES, 37 * PAGE_BYTES + 8 * TOKEN_BYTES)
    assert slot_bytes(place, 599) == (38336, 38400)


def metadata_of(table: BlockTable, row: int, first: int, count: int) -> AttentionMetadata:
    positions = np.arange(first, first + count)
    rows = np.full(count, row)
    return AttentionMetadata(
        query_start=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([first + count], dtype=torch.int32),
        block_table=torch.from_numpy(table.take(np.array([row]), 3)),
        slot_mapping=torch.from_numpy(table.slots(rows, positions)),
        num_requests=1,
        num_tokens=count,
        max_query_len=count,
        max_seq_len=first + count,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_written_through_the_slot_mapping_is_read_out_of_tensor0(backend: str) -> None:
    rank = seed_rank(backend)
    key = torch.randn(48, NUM_KV_HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0)).bfloat16()
    value = torch.randn(48, NUM_KV_HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(1)).bfloat16()
    layer = rank.layers[L0]
    assert layer.kv_cache is not None
    layer.backend.write(layer.kv_cache, key, value, metadata_of(seed_table(), 2, 0, 48))

    start, stop = slot_bytes(placements(rank.plan.configs[0])[L0], 599)
    found = rank.tensors[0][start:stop].view(torch.bfloat16).view(NUM_KV_HEADS, 2, HEAD_SIZE)
    assert torch.equal(found[:, 0], key[7])
    assert torch.equal(found[:, 1], value[7])
    written = torch.zeros(NUM_BLOCKS, dtype=torch.bool)
    written[[37, 12, 44]] = True
    touched = rank.tensors[0].view(NUM_BLOCKS, PAGE_BYTES).ne(0).any(dim=1)
    assert torch.equal(touched, written)
    assert not rank.tensors[1].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_reads_back_what_the_step_wrote(backend: str) -> None:
    rank = seed_rank(backend)
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(48, 2, HEAD_SIZE, generator=generator).bfloat16() for _ in range(3))
    rank.groups[0].metadata = metadata_of(seed_table(), 2, 0, 48)
    out = rank.layers[L2].forward(query, key, value)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(part.float().transpose(0, 1) for part in (query, key, value)), is_causal=True, scale=1.0
    ).transpose(0, 1)
    assert torch.allclose(out.float(), expected, atol=0.02, rtol=0.02)
    assert rank.layers[L2].num_calls == 1


def test_layers_of_equal_slot_index_share_a_tensor() -> None:
    rank = seed_rank()
    for one, other, tensor in ((L0, L1, 0), (L2, L3, 1)):
        assert rank.views[one].key.data_ptr() == rank.views[other].key.data_ptr() == rank.tensors[tensor].data_ptr()
    rank.views[L0].key[37, 7, 1, 3] = 5.0
    assert rank.views[L1].key[37, 7, 1, 3] == 5.0, "L1 looks into the same bytes as L0"
    assert not rank.views[L2].key.any(), "L2 and L3 lie in the other tensor"
    assert rank.views[L0].key.untyped_storage().data_ptr() == rank.tensors[0].untyped_storage().data_ptr(), "no copy"


def test_bound_layers_know_their_view_and_their_group() -> None:
    rank = seed_rank()
    assert [group.index for group in rank.groups] == [0, 1]
    for name, group in ((L0, 0), (L2, 0), (L1, 1), (L3, 1)):
        assert rank.layers[name].kv_cache is rank.views[name]
        assert rank.layers[name].group is rank.groups[group]
