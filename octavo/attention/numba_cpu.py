"""Attention on a CPU: gathers the keys and values that a request's queries read, then multiplies them tile by tile."""

from __future__ import annotations

import itertools

import torch

from octavo.attention.backend import AttentionBackend, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.torch_reference import first_position
from octavo.kv.specs import PAD_SLOT

_QUERY_TILE = 128


class NumbaCPU(AttentionBackend):
    """Paged attention for one process of a CPU."""

    name = "numba_cpu"

    def write(self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        block_size = cache.key.shape[1]
        slots = metadata.slot_mapping
        kept = slots != PAD_SLOT
        block, offset = slots[kept] // block_size, slots[kept] % block_size
        cache.key[block, offset] = key[kept].to(cache.key.dtype)
        cache.value[block, offset] = value[kept].to(cache.value.dtype)

    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        out = query.new_zeros(query.shape[0], query.shape[1], cache.value.shape[3])
        starts, seq_lens = metadata.query_start.tolist(), metadata.seq_lens.tolist()
        for request, (start, stop) in enumerate(itertools.pairwise(starts)):
            for low in range(start, stop, _QUERY_TILE):
                high = min(low + _QUERY_TILE, stop)
                last = seq_lens[request] - (stop - high) - 1
                out[low:high] = _attend_tile(layer, cache, query[low:high], metadata.block_table[request], last)
        return out


def _attend_tile(
    layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, blocks: torch.Tensor, last: int
) -> torch.Tensor:
    """Queries `[n, heads, size]` whose last one stands at position `last`."""
    num_queries, block_size, num_kv_heads = query.shape[0], cache.key.shape[1], cache.key.shape[2]
    first = first_position(last - num_queries + 1, layer.window, layer.chunk)
    positions = torch.arange(first, last + 1)
    block, offset = blocks[positions // block_size].long(), positions % block_size
    keys = cache.key[block, offset].float().permute(1, 2, 0)
    values = cache.value[block, offset].float().transpose(0, 1)
    rows = (
        query.float().reshape(num_queries, num_kv_heads, -1, query.shape[2]).permute(1, 2, 0, 3)
    )  # [kv heads, group, n, size]
    scores = torch.matmul(rows, keys[:, None]) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    at = torch.arange(last - num_queries + 1, last + 1)
    low = torch.tensor([first_position(p, layer.window, layer.chunk) for p in at.tolist()])
    hidden = (positions > at[:, None]) | (positions < low[:, None])
    scores.masked_fill_(hidden, -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(num_kv_heads, -1, 1, 1).expand(-1, -1, num_queries, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : positions.numel()]
    return torch.matmul(weights, values[:, None]).permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)


def create(num_threads: int) -> NumbaCPU:
    """The backend, for the registry."""
    return NumbaCPU()
