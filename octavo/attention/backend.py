"""The attention contract: how the bytes of a step are written and read.

A model's attention module calls `AttentionLayer.forward`. That **writes** the K and V of all the step's tokens through
the slot mapping, then lets each query **read** the pages of its request's block table. All of a layer's writes come
before its reads, so a request may read what another request of the same step writes (a prefix both share).

    query  [num_tokens, num_heads, head_size]
    key    [num_tokens, num_kv_heads, head_size]
    value  [num_tokens, num_kv_heads, head_size_v]; None where V is a part of K (a latent)
    out    [num_tokens, num_heads, head_size_v]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from octavo.kv.specs import AttentionSpec, MLASpec


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KVCacheView:
    """One layer's view of its tensor: no copy, strides by `kv/layout.py`.

    key:   [num_blocks, block_size, num_kv_heads, head_size]
    value: [num_blocks, block_size, num_kv_heads, head_size_v]
    The last dimension is contiguous. V of one token and head lies behind K; V of a latent is the first part of K, the
    same bytes.
    """

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step as one group sees it: R requests, T tokens.

    Request i's tokens are number query_start[i] to query_start[i + 1] - 1 of the step.
    """

    query_start: torch.Tensor
    """int32 [R + 1]."""
    seq_lens: torch.Tensor
    """int32 [R]: tokens in the cache once this step has written. Request i's queries are its last positions."""
    block_table: torch.Tensor
    """int32 [R, width]: column j is the block of positions from j * block_size on; 0 where nothing is kept."""
    slot_mapping: torch.Tensor
    """int64 [T]: slot each token is written to; -1 writes nothing."""
    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int


class AttentionGroup:
    """The layers of one KV cache group as a rank runs them.

    Owns: the metadata of the step under way. Never: cache memory.
    """

    def __init__(self, index: int, block_size: int) -> None:
        self.index = index
        self.block_size = block_size
        self.metadata: AttentionMetadata | None = None
        """Set by the model runner before each forward."""


class AttentionLayer:
    """One attention module's connection to the cache.

    Owns: its numbers (heads, scale, window, soft cap, sinks, slopes) and, once bound, its cache view.
    Never: allocates; `worker/kv_memory.py` binds `kv_cache` and `group`.
    """

    def __init__(
        self,
        name: str,
        *,
        spec: AttentionSpec | MLASpec,
        num_heads: int,
        scale: float,
        backend: AttentionBackend,
        window: int | None = None,
        chunk: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        kv_sharing_target: str | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.num_heads = num_heads
        self.scale = scale
        self.backend = backend
        self.window = window
        """A query at position p reads positions p - window + 1 ... p; None reads all."""
        self.chunk = chunk
        """A query at position p reads from p // chunk * chunk on; None reads all."""
        self.soft_cap = soft_cap
        """Scores become soft_cap * tanh(score / soft_cap)."""
        self.sinks = sinks
        """float [num_heads]: a logit per head that takes part in the softmax and has no value."""
        self.alibi_slopes = alibi_slopes
        """float [num_heads]: a query at p adds slope * (k - p) to the score of the key at k, after the soft cap
        (Press et al., "Train Short, Test Long", 2022)."""
        self.kv_sharing_target = kv_sharing_target
        """Name of the layer whose K and V this layer reads; it then writes nothing of its own."""
        self.kv_cache: KVCacheView | None = None
        self.group: AttentionGroup | None = None
        self.num_calls = 0
        """Forwards so far: lets a test prove that each cached layer went through the cache."""

    def forward(self, query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None) -> torch.Tensor:
        """Write the step's `key` and `value`, then attend. Shapes: see the module's top.

        A sharing layer has neither, a layer that keeps a latent has no `value`.
        """
        if self.group is None or self.group.metadata is None or self.kv_cache is None:
            raise RuntimeError(f"attention layer {self.name} was called before it was bound to the KV cache")
        self.num_calls += 1
        metadata = self.group.metadata
        if key is not None:
            self.backend.write(self.kv_cache, key, value, metadata)
        return self.backend.attend(self, self.kv_cache, query, metadata)


class AttentionBackend(ABC):
    """Writes K and V by slot, reads them by block table. Stateless between calls; one object serves all layers."""

    name: str

    def warm_up(self, layer: AttentionLayer, dtype: torch.dtype) -> None:  # noqa: B027 (most have nothing to do)
        """Make the first step of `layer`, with queries of `dtype`, as fast as the others.

        Called at start-up for every layer, bound or not; compiles kernels where a backend has any, which may take
        seconds for the first layer of a kind on a machine's first run.
        """

    @abstractmethod
    def write(
        self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor | None, metadata: AttentionMetadata
    ) -> None:
        """Store token t's K and V at `slot_mapping[t]`, converted to the cache's dtype; skip slot -1.

        `value` is None where the view's V lies inside its K: then K alone is stored.
        """

    @abstractmethod
    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """[num_tokens, num_heads, head_size_v] in the query's dtype.

        Query j of request i stands at position `seq_lens[i] - num_queries_i + j`, reads positions up to its own within
        the layer's window or chunk, and never touches a block whose positions all lie outside (its id may be 0).
        """
