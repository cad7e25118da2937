"""The living definition of attention over pages: slow, obvious, one query at a time.

Every other backend is tested against this one. All arithmetic is float64, so that a difference is the other's rounding.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from octavo.attention.backend import AttentionBackend, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.kv.specs import PAD_SLOT


class TorchReference(AttentionBackend):
    """Plain torch on any device; correct by being short."""

    name = "torch_reference"

    def write(
        self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor | None, metadata: AttentionMetadata
    ) -> None:
        block_size = cache.key.shape[1]
        for token, slot in enumerate(metadata.slot_mapping.tolist()):
            if slot != PAD_SLOT:
                cache.key[slot // block_size, slot % block_size] = key[token].to(cache.key.dtype)
                if value is not None:
                    cache.value[slot // block_size, slot % block_size] = value[token].to(cache.value.dtype)

    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        out = query.new_zeros(query.shape[0], query.shape[1], cache.value.shape[3])
        starts, seq_lens = metadata.query_start.tolist(), metadata.seq_lens.tolist()
        for request, (start, stop) in enumerate(itertools.pairwise(starts)):
            for token in range(start, stop):
                position = seq_lens[request] - (stop - token)
                first = first_position(position, layer.window, layer.chunk)
                keys, values = gather(cache, metadata.block_table[request], first, position)
                out[token] = attend_one(query[token], keys, values, layer).to(out.dtype)
        return out


def first_position(position: int, window: int | None, chunk: int | None) -> int:
    """The first position that the query at `position` reads."""
    first = 0 if window is None else max(0, position - window + 1)
    return first if chunk is None else max(first, position // chunk * chunk)


def gather(cache: KVCacheView, blocks: torch.Tensor, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of positions `first` to `last` (both included), as `[positions, kv heads, size]` in float64."""
    block_size = cache.key.shape[1]
    positions = torch.arange(first, last + 1, device=cache.key.device)
    block, offset = blocks[positions // block_size].long(), positions % block_size
    return cache.key[block, offset].double(), cache.value[block, offset].double()


def attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """One query `[heads, size]` over its keys and values: softmax(scale * QK) V, per head.

    Query heads come in as many groups as there are KV heads; a group reads one KV head.
    """
    grouped = query.double().reshape(keys.shape[1], -1, query.shape[1])
    scores = torch.einsum("kgd,pkd->kgp", grouped, keys) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if layer.alibi_slopes is not None:
        distance = torch.arange(1 - keys.shape[0], 1, device=scores.device)  # The query stands at the last key.
        scores = scores + layer.alibi_slopes.double().view(*scores.shape[:2], 1) * distance
    if layer.sinks is not None:
        scores = torch.cat([scores, layer.sinks.double().view(*scores.shape[:2], 1)], dim=2)
    weights = torch.softmax(scores, dim=2)[..., : keys.shape[0]]
    return torch.einsum("kgp,pkd->kgd", weights, values).flatten(0, 1)


def create(num_threads: int, cache_dir: Path | None) -> TorchReference:
    """The backend, for the registry; torch's own threads serve it, and it keeps nothing on disk."""
    return TorchReference()
