"""Run a loaded model over a cache of its own: pages in shuffled order, requests in ragged chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from octavo.attention.backend import AttentionGroup, AttentionMetadata, KVCacheView
from octavo.kv.layout import strided_view
from octavo.kv.specs import LayerSpec
from octavo.models.hf_adapter import LoadedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PagedRun:
    """Owns: a cache for `lengths[i]` tokens of each request i, and how many of them have been computed."""

    def __init__(self, model: LoadedModel, lengths: Sequence[int], *, seed: int = 0) -> None:
        self.model = model
        block_sizes = {layer.spec.block_size for layer in model.attention_layers.values()}
        (self.block_size,) = block_sizes
        self.done = [0] * len(lengths)
        width = -(-max(lengths) // self.block_size)
        num_blocks = 1 + width * len(lengths)
        order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1
        self.tables = order.view(len(lengths), width).int()
        self.group = AttentionGroup(0, self.block_size)
        views: dict[str, KVCacheView] = {}
        for name, layer in model.attention_layers.items():
            if layer.kv_sharing_target is None:
                views[name] = _allocate(layer.spec, num_blocks)
            layer.kv_cache = views[layer.kv_sharing_target or name]
            layer.group = self.group

    def step(self, chunks: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute `chunks[i]` as request i's next tokens (may be empty); their logits, request by request."""
        active = [i for i, chunk in enumerate(chunks) if len(chunk)]
        ends = [self.done[i] + len(chunks[i]) for i in active]
        positions = torch.cat([torch.arange(self.done[i], end) for i, end in zip(active, ends, strict=True)])
        counts = [len(chunks[i]) for i in active]
        rows = torch.cat([torch.full((count,), i) for i, count in zip(active, counts, strict=True)])
        slots = self.tables[rows, positions // self.block_size].long() * self.block_size + positions % self.block_size
        starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
        seq_lens = torch.tensor(ends, dtype=torch.int32)
        self.group.metadata = AttentionMetadata(
            query_start=starts,
            seq_lens=seq_lens,
            block_table=self.tables[active],
            slot_mapping=slots,
            num_requests=len(active),
            num_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=max(ends),
        )
        tokens = torch.tensor([token for i in active for token in chunks[i]])
        logits = self.model.compute_logits(self.model.forward(tokens, positions, starts, seq_lens))
        self.done = [done + len(chunk) for done, chunk in zip(self.done, chunks, strict=True)]
        return list(logits.split([len(chunk) for chunk in chunks]))


def logits_in_chunks(
    model: LoadedModel, prompts: Sequence[Sequence[int]], chunk_sizes: Sequence[int]
) -> list[torch.Tensor]:
    """[len(prompt), vocabulary] of each prompt; request i takes the chunk sizes in turn, starting with the i-th."""
    run = PagedRun(model, [len(prompt) for prompt in prompts])
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for step in itertools.count():
        sizes = [chunk_sizes[(step + i) % len(chunk_sizes)] for i in range(len(prompts))]
        chunks = [prompt[done : done + size] for prompt, done, size in zip(prompts, run.done, sizes, strict=True)]
        if not any(chunks):
            return [torch.cat(part) for part in parts]
        for part, logits in zip(parts, run.step(chunks), strict=True):
            part.append(logits)
    raise AssertionError("unreachable")


def _allocate(spec: LayerSpec, num_blocks: int) -> KVCacheView:
    view = strided_view(spec, num_blocks)
    memory = torch.full((num_blocks * view.strides[0],), torch.nan, dtype=DTYPES[view.dtype])
    return KVCacheView(
        memory.as_strided(view.key_shape, view.strides, view.key_offset),
        memory.as_strided(view.value_shape, view.strides, view.value_offset),
    )
