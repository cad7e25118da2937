"""The vocabulary of a plan: what one layer caches, which layers share a block table, and the tensors behind them.

Words (one sense each, see docs/glossary.md): a **block** is an id for `block_size` consecutive positions of one group;
a **page** is one layer's bytes of one block; a **slot** is `block_id * block_size + offset`, one token's place.

Layout of a page (layer-outermost, token-major), for plain K and V:

    page   = block_size tokens, each [num_kv_heads][K (head_size) | V (head_size_v)] elements
    token_bytes = num_kv_heads * (head_size + head_size_v) * itemsize
    byte of token t of block b in its tensor = b * page_bytes + t * token_bytes

so a token's K and V of one layer are one contiguous byte range, and `locate` is a multiplication.
"""

from __future__ import annotations

import math

import msgspec

from octavo.config import DTYPE_BYTES
from octavo.errors import ConfigError

NULL_BLOCK = 0
"""Block id 0 is never handed out: it stands in tables where no memory is needed."""

PAD_SLOT = -1
"""Slot of a padding token: nothing is written for it."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`; `ConfigError` for a dtype that no plan knows."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ConfigError(
            f"{dtype!r} is not a dtype of a KV cache.", remedy="Use one of " + ", ".join(DTYPE_BYTES) + "."
        ) from None


class KVCacheSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one layer keeps in the cache. Equal specs can share a group."""

    block_size: int
    """Tokens of one block."""
    page_size_padded: int | None = None
    """Bytes of one page where it is padded to another kind's page; None is no padding."""

    @property
    def content_bytes(self) -> int:
        """Bytes of one page that hold something."""
        raise NotImplementedError

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included: the stride from a block to the next."""
        return self.content_bytes if self.page_size_padded is None else self.page_size_padded


class AttentionSpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """A layer that caches a K and a V vector per token and KV head. Sizes are of one rank."""

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    """Size of a V vector; None: as `head_size`."""
    dtype: str
    scale_bytes: int = 0
    """Bytes of scales stored per token and head beside quantised K and V."""

    @property
    def value_size(self) -> int:
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: `num_kv_heads * ((head_size + value_size) * itemsize + scale_bytes)`."""
        per_head = (self.head_size + self.value_size) * dtype_bytes(self.dtype) + self.scale_bytes
        return self.num_kv_heads * per_head

    @property
    def content_bytes(self) -> int:
        return self.block_size * self.token_bytes


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """Every token sees all tokens before it."""


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """A token sees itself and the `window - 1` tokens before it."""

    window: int


class ChunkedLocalSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """A token sees the tokens of its own chunk of `chunk` positions, up to itself."""

    chunk: int


class MLASpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """Multi-head latent attention: one latent vector per token, no V, replicated over tensor-parallel ranks."""

    latent_size: int
    dtype: str
    packed_token_bytes: int | None = None
    """Bytes of one token in a packed quantised format; None is `latent_size * itemsize`."""

    @property
    def token_bytes(self) -> int:
        if self.packed_token_bytes is not None:
            return self.packed_token_bytes
        return self.latent_size * dtype_bytes(self.dtype)

    @property
    def content_bytes(self) -> int:
        return self.block_size * self.token_bytes


class MambaSpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """Mamba or linear attention: a state of fixed size, whatever the length. One page is one state."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    cache_mode: str = "none"
    """`none`: one state per request; `align`: states kept at block boundaries for prefix reuse."""
    num_speculative_blocks: int = 0

    @property
    def content_bytes(self) -> int:
        return sum(math.prod(shape) * dtype_bytes(dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


LayerSpec = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalSpec | MLASpec | MambaSpec


class KVCacheGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. Layer i of `layer_names` has slot index i and lies in tensor i."""

    layer_names: tuple[str, ...]
    spec: LayerSpec
    """The spec of the layers; where `layer_specs` is given, that of the first layer."""
    layer_specs: tuple[LayerSpec, ...] | None = None
    """One spec per layer where page sizes differ inside the group; None: all equal `spec`."""


class KVCacheTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One flat byte tensor. Each name in `shared_by` is a layer of another group, with the same slot index."""

    size_bytes: int
    shared_by: tuple[str, ...]


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's plan. Made by `octavo.kv.planner`, never edited.

    `shared_layers` maps a layer that keeps no cache of its own to the layer whose view it reads.
    """

    num_blocks: int
    """Null block included."""
    groups: tuple[KVCacheGroupSpec, ...]
    tensors: tuple[KVCacheTensor, ...]
    shared_layers: dict[str, str] = {}
    max_model_len: int
    max_chunk_tokens: int
    """Most tokens one request may be given in one step: what the windowed groups' reservation counts on."""
