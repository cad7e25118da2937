"""Steps of attention to compare backends on: requests of any length; pages hold NaN wherever nothing may be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from octavo.attention.backend import AttentionBackend, AttentionGroup, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.torch_reference import TorchReference, first_position
from octavo.kv.specs import AttentionSpec, FullAttentionSpec, MLASpec

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 0.01, torch.float16: 0.002}
"""Largest difference to the reference, relative to the largest value that a query reads."""

REFERENCE = TorchReference()


@dataclass(frozen=True)
class Case:
    """One layer's step. `requests` are (tokens in the cache after the step, of which queries of the step)."""

    requests: tuple[tuple[int, int], ...] = ((40, 1), (7, 7), (90, 30))
    num_kv_heads: int = 2
    group_size: int = 3
    head_size: int = 64
    value_size: int = 64
    is_latent: bool = False
    """Whether V is the leading part of K, the same bytes; there is one KV head then."""
    block_size: int = 16
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    has_slopes: bool = False
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype = torch.float32
    num_padding: int = 0
    seed: int = 0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size

    @property
    def stored_value_size(self) -> int:
        """Elements of V beside K."""
        return 0 if self.is_latent else self.value_size

    @property
    def spec(self) -> AttentionSpec | MLASpec:
        dtype = str(self.cache_dtype).removeprefix("torch.")
        if self.is_latent:
            return MLASpec(
                block_size=self.block_size, latent_size=self.head_size, value_size=self.value_size, dtype=dtype
            )
        return FullAttentionSpec(
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            head_size_v=self.value_size,
            dtype=dtype,
        )


class Step:
    """The tensors of a case. Of the past only what the step's queries read is in the cache; the rest is NaN.

    Pages follow the layout of `octavo.kv.specs`; tables hold 0 where every position is out of reach.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        random = torch.Generator().manual_seed(case.seed)
        block, per_head = case.block_size, case.head_size + case.stored_value_size
        widths = [-(-length // block) for length, _ in case.requests]
        num_blocks = 1 + sum(widths)
        self.memory = torch.full(
            (num_blocks * block * case.num_kv_heads * per_head,), torch.nan, dtype=case.cache_dtype
        )
        self.cache = self.view(self.memory)
        ids = (torch.randperm(num_blocks - 1, generator=random) + 1).tolist()
        self.table = torch.zeros(len(widths), max(widths) + 2, dtype=torch.int32)
        slots: list[int] = []
        for row, (length, num_queries) in enumerate(case.requests):
            first = first_position(length - num_queries, case.window, case.chunk)
            for column in range(first // block, widths[row]):
                self.table[row, column] = ids.pop()
            place = [int(self.table[row, p // block]) * block + p % block for p in range(length)]
            past = torch.tensor(place[first : length - num_queries], dtype=torch.long)
            for side, size in ((self.cache.key, case.head_size), (self.cache.value, case.stored_value_size)):
                if size == 0:
                    continue
                numbers = torch.randn(past.numel(), case.num_kv_heads, size, generator=random)
                side[past // block, past % block] = numbers.to(case.cache_dtype)
            slots += place[length - num_queries :]
        num_tokens = len(slots) + case.num_padding
        # One fused tensor, as a model's QKV projection leaves it: rows are not contiguous.
        fused = torch.randn(
            num_tokens, case.num_heads * case.head_size + case.num_kv_heads * per_head, generator=random
        )
        query, key, value = torch.split(
            fused.to(case.dtype),
            [
                case.num_heads * case.head_size,
                case.num_kv_heads * case.head_size,
                case.num_kv_heads * case.stored_value_size,
            ],
            dim=1,
        )
        self.query = query.view(num_tokens, case.num_heads, case.head_size)
        self.key = key.view(num_tokens, case.num_kv_heads, case.head_size)
        self.value = None if case.is_latent else value.view(num_tokens, case.num_kv_heads, case.value_size)
        self.sinks = torch.randn(case.num_heads, generator=random) if case.has_sinks else None
        self.slopes = torch.rand(case.num_heads, generator=random) / 4 if case.has_slopes else None
        self.metadata = self._metadata(slots)

    def _metadata(self, slots: Sequence[int]) -> AttentionMetadata:
        counts = [num_queries for _, num_queries in self.case.requests]
        lengths = [length for length, _ in self.case.requests]
        return AttentionMetadata(
            query_start=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=self.table,
            slot_mapping=torch.tensor([*slots, *[-1] * self.case.num_padding], dtype=torch.int64),
            num_requests=len(lengths),
            num_tokens=len(slots) + self.case.num_padding,
            max_query_len=max(counts),
            max_seq_len=max(lengths),
        )

    def view(self, memory: torch.Tensor) -> KVCacheView:
        case = self.case
        pages = memory.view(-1, case.block_size, case.num_kv_heads, case.head_size + case.stored_value_size)
        value = pages[..., : case.value_size] if case.is_latent else pages[..., case.head_size :]
        return KVCacheView(key=pages[..., : case.head_size], value=value)

    def layer(self, backend: AttentionBackend, **changes: Any) -> AttentionLayer:
        case = replace(self.case, **changes)
        layer = AttentionLayer(
            "layers.0",
            spec=case.spec,
            num_heads=case.num_heads,
            scale=case.head_size**-0.5,
            backend=backend,
            window=case.window,
            chunk=case.chunk,
            soft_cap=case.soft_cap,
            sinks=self.sinks,
            alibi_slopes=self.slopes,
        )
        layer.group = AttentionGroup(0, case.block_size)
        layer.group.metadata = self.metadata
        return layer

    def run(self, backend: AttentionBackend, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(output, memory after the step), from the same start each time. `changes` are made to the layer alone."""
        memory = self.memory.clone()
        layer = self.layer(backend, **changes)
        layer.kv_cache = self.view(memory)
        return layer.forward(self.query, self.key, self.value), memory


def check(backend: AttentionBackend, step: Step, **changes: Any) -> None:
    """Asserts that `backend` writes the very bytes that the reference writes, and computes what it computes."""
    expected, expected_memory = step.run(REFERENCE)
    got, memory = step.run(backend, **changes)
    assert torch.equal(memory.view(torch.uint8), expected_memory.view(torch.uint8)), "the pages differ"
    assert got.shape == expected.shape and got.dtype == expected.dtype
    tokens = sum(num_queries for _, num_queries in step.case.requests)
    assert not expected[:tokens].isnan().any()
    assert not got[tokens:].any(), "the output of padding is not 0"
    scale = step.view(expected_memory).value.double().nan_to_num().abs().max()
    error = (got[:tokens].double() - expected[:tokens].double()).abs().max() / scale
    limit = max(TOLERANCE[step.case.dtype], TOLERANCE[step.case.cache_dtype] / 10)
    assert error <= limit, f"differs by {error:.2e} of the largest value, more than {limit}"


LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([64, 127, 128, 129, 200, 255, 256, 300, 520]))


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Decodes, whole prompts and later chunks of prompts, mixed."""
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(LENGTHS)
        most = min(length, 60)
        drawn.append((length, draw(st.one_of(st.just(1), st.just(most), st.integers(1, most)))))
    return tuple(drawn)


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[tuple[torch.dtype, torch.dtype]]) -> Case:
    """Any step of any layer, with queries and cache of one of the pairs `dtypes`."""
    dtype, cache_dtype = draw(st.sampled_from(list(dtypes)))
    head_size = draw(st.sampled_from([8, 33, 40, 64, 80, 96, 112, 128, 256, 576]))
    block_size = draw(st.sampled_from([1, 2, 3, 8, 16, 32, 128]))
    window = draw(st.one_of(st.none(), st.sampled_from([1, 2, block_size, 17, 64, 128, 129, 200])))
    chunk = draw(st.one_of(st.none(), st.none(), st.sampled_from([1, 8, 20, 128, 150])))
    value_size = draw(st.sampled_from([head_size, head_size, 16, 24, 50]))
    is_latent = value_size <= head_size and draw(st.sampled_from([False, False, True]))
    return Case(
        requests=draw(requests()),
        num_kv_heads=1 if is_latent else draw(st.integers(1, 3)),
        group_size=draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 20])),
        head_size=head_size,
        value_size=value_size,
        is_latent=is_latent,
        block_size=block_size,
        window=window,
        chunk=chunk,
        soft_cap=draw(st.sampled_from([None, None, 1.5, 30.0])),
        has_sinks=draw(st.booleans()),
        has_slopes=draw(st.integers(0, 3)) == 0,
        dtype=dtype,
        cache_dtype=cache_dtype,
        num_padding=draw(st.sampled_from([0, 0, 3])),
        seed=draw(st.integers(0, 2**31)),
    )
