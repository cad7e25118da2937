"""The vocabulary of a plan: what one layer caches, which layers share a block table, and the tensors behind them.

Words (one sense each, see docs/glossary.md): a **block** is an id for `block_size` consecutive positions of one group;
a **page** is one layer's bytes of one block; a **slot** is `block_id * block_size + offset`, one token's place.

Layout of a page (layer-outermost, token-major), for plain K and V:

    page   = block_size tokens, each [num_kv_heads][K (head_size) | V (head_size_v)] elements
    token_bytes = num_kv_heads * (head_size + head_size_v) * itemsize
    byte of token t of block b in its tensor = b * page_bytes + t * token_bytes
so a token's K and V of one layer are one contiguous byte range. A latent (`MLASpec`) is both K and V: it is stored
once, `token_bytes = latent_size * itemsize`, and V is its leading part.

How many blocks one request can hold, each kind answers twice: `max_blocks` is what Octavo needs at once,
`reference_max_blocks` what the reference engine counts.
"""

from __future__ import annotations

import math

import msgspec

from octavo.kv.base import KVCacheSpec, TokenVectors, ceil_div, dtype_bytes, most_blocks_touched

NULL_BLOCK = 0
"""Block id 0 is never handed out: it stands in tables where no memory is needed."""

PAD_SLOT = -1
"""Slot of a padding token: nothing is written for it."""

ENDLESS = 2**62
"""A number of tokens that no request reaches."""


class AttentionSpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """A layer that caches a K and a V vector per token and KV head. Sizes are of one rank."""

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    """Size of a V vector; None: as `head_size`."""
    dtype: str
    scale_bytes: int = 0
    """Bytes of scales stored per token and head beside quantised K and V."""
    packed_head_bytes: int | None = None
    """Bytes of one token and head in a packed format; None is what K, V and scales add up to."""
    quantization: str = ""
    """Name of the format of quantised K and V; empty is none. Layers of different formats never have equal specs."""

    @property
    def value_size(self) -> int:
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: `num_kv_heads * ((head_size + value_size) * itemsize + scale_bytes)`."""
        if self.packed_head_bytes is not None:
            return self.num_kv_heads * self.packed_head_bytes
        per_head = (self.head_size + self.value_size) * dtype_bytes(self.dtype) + self.scale_bytes
        return self.num_kv_heads * per_head

    @property
    def token_vectors(self) -> TokenVectors | None:
        if self.packed_head_bytes is not None or self.scale_bytes:
            return None
        return TokenVectors(
            dtype=self.dtype,
            num_heads=self.num_kv_heads,
            head_elements=self.head_size + self.value_size,
            key_size=self.head_size,
            value_size=self.value_size,
            value_offset=self.head_size,
        )


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """Every token sees all tokens before it.

    A layer whose attention has a window or chunk, but which is planned as if it had none, notes it in `compute_window`
    or `compute_chunk`: what it keeps is every token, what it reads is less.
    """

    compute_window: int | None = None
    compute_chunk: int | None = None

    @property
    def kind(self) -> str:
        return "full"

    @property
    def reach(self) -> int | None:
        return self.compute_window or self.compute_chunk


class SinkFullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """Full attention whose first `sink_len` positions are read by every token, whatever else it reads."""

    sink_len: int

    @property
    def kind(self) -> str:
        return "sink_full"


class RetainedWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """A token sees the whole prompt and the `window - 1` tokens before itself (R-SWA): up to every token is kept."""

    window: int

    @property
    def kind(self) -> str:
        return "rswa"


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """A token sees itself and the `window - 1` tokens before it."""

    window: int

    @property
    def kind(self) -> str:
        return "sliding_window"

    @property
    def uniform_key(self) -> tuple[object, ...]:
        return (self.kind, self.block_size, self.window)

    @property
    def drops_blocks(self) -> bool:
        return True

    def max_blocks(self, num_tokens: int, *, chunk_tokens: int) -> int:
        """Blocks under the step's tokens and the window before the first of them, at the worst place in a block."""
        span = min(self.window - 1 + min(chunk_tokens, num_tokens), num_tokens)
        return most_blocks_touched(span, block_size=self.block_size, num_tokens=num_tokens)

    def reference_max_blocks(self, num_tokens: int, *, in_flight_tokens: int) -> int:
        return ceil_div(min(self.window - 1 + in_flight_tokens, num_tokens), self.block_size) + 1

    @property
    def reach(self) -> int | None:
        return self.window


class ChunkedLocalSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """A token sees the tokens of its own chunk of `chunk` positions, up to itself."""

    chunk: int

    @property
    def kind(self) -> str:
        return "chunked_local"

    @property
    def uniform_key(self) -> tuple[object, ...]:
        return (self.kind, self.block_size, self.chunk)

    @property
    def drops_blocks(self) -> bool:
        return True

    def max_blocks(self, num_tokens: int, *, chunk_tokens: int) -> int:
        """Blocks from the start of the attention chunk that the step's first token lies in to the step's last token."""
        span = min(self.chunk - 1 + min(chunk_tokens, num_tokens), num_tokens)
        return most_blocks_touched(span, block_size=self.block_size, num_tokens=num_tokens, stride=self.chunk)

    def reference_max_blocks(self, num_tokens: int, *, in_flight_tokens: int) -> int:
        return ceil_div(min(self.chunk + in_flight_tokens, num_tokens), self.block_size)

    @property
    def reach(self) -> int | None:
        return self.chunk


class MLASpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """Multi-head latent attention: one latent vector per token, replicated over tensor-parallel ranks.

    The vector is the K of all heads, and its first `value_size` elements are their V.
    """

    latent_size: int
    value_size: int | None = None
    """None: as `latent_size`."""
    dtype: str
    packed_token_bytes: int | None = None
    """Bytes of one token in a packed quantised format; None is `latent_size * itemsize`."""
    quantization: str = ""
    """Name of the packed format; empty is none."""

    @property
    def kind(self) -> str:
        return "mla"

    @property
    def token_bytes(self) -> int:
        if self.packed_token_bytes is not None:
            return self.packed_token_bytes
        return self.latent_size * dtype_bytes(self.dtype)

    @property
    def token_vectors(self) -> TokenVectors | None:
        if self.packed_token_bytes is not None:
            return None
        return TokenVectors(
            dtype=self.dtype,
            num_heads=1,
            head_elements=self.latent_size,
            key_size=self.latent_size,
            value_size=self.latent_size if self.value_size is None else self.value_size,
            value_offset=0,
        )


class CrossAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag=True):
    """K and V of an encoder's tokens: as many as the encoder may produce, whatever the decoder's length."""

    max_encoder_tokens: int

    @property
    def kind(self) -> str:
        return "cross"

    @property
    def uniform_key(self) -> tuple[object, ...]:
        return (self.kind, self.block_size, self.max_encoder_tokens)

    @property
    def prefix_cacheable(self) -> bool:
        return False

    def max_blocks(self, num_tokens: int, *, chunk_tokens: int) -> int:
        del num_tokens, chunk_tokens
        return ceil_div(self.max_encoder_tokens, self.block_size)

    @property
    def reach(self) -> int | None:
        return self.max_encoder_tokens

    def ideal_bytes(self, num_tokens: int) -> int:
        del num_tokens
        return self.fixed_bytes


class MambaSpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """Mamba or linear attention: a state of fixed size, whatever the length. One page is one state."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    cache_mode: str = "none"
    """`none`: one state per request; `align`: states kept at block boundaries for prefix reuse; `auto`: whichever of
    them the plan needs."""
    num_speculative_blocks: int = 0

    @property
    def kind(self) -> str:
        return "mamba"

    @property
    def token_bytes(self) -> int:
        return 0  # a state does not grow with tokens

    @property
    def content_bytes(self) -> int:
        return sum(math.prod(shape) * dtype_bytes(dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    @property
    def tokens_per_state(self) -> int:
        """Tokens after which a state goes to the next block: never, where a request has only one."""
        return self.block_size if self.cache_mode == "align" else ENDLESS

    @property
    def uniform_key(self) -> tuple[object, ...]:
        return (self.kind, self.block_size, self.page_bytes, self.cache_mode, self.num_speculative_blocks)

    def max_blocks(self, num_tokens: int, *, chunk_tokens: int) -> int:
        """The running state, and drafts. In `align` mode a step that crosses a border takes a second block while there
        is one; where there is none, the state goes on in its block and the one at the border is lost."""
        del num_tokens, chunk_tokens
        return 1 + self.num_speculative_blocks

    def reference_max_blocks(self, num_tokens: int, *, in_flight_tokens: int) -> int:
        del num_tokens, in_flight_tokens
        return (2 if self.cache_mode == "align" else 1) + self.num_speculative_blocks

    @property
    def fixed_bytes(self) -> int:
        return self.content_bytes

    @property
    def bytes_per_token(self) -> int:
        return 0

    def ideal_bytes(self, num_tokens: int) -> int:
        del num_tokens
        return self.content_bytes


LayerSpec = (
    FullAttentionSpec
    | SinkFullAttentionSpec
    | RetainedWindowSpec
    | SlidingWindowSpec
    | ChunkedLocalSpec
    | MLASpec
    | CrossAttentionSpec
    | MambaSpec
)


class KVCacheGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. Layer i of `layer_names` has slot index i and lies in tensor i.

    A rank of a pipeline sees its own layers only; a group none of whose layers it holds is empty there, so that the
    number of a group means the same on every rank.
    """

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
    """Tokens that one request can always be given in one step: what the windowed groups' reservation counts on."""
