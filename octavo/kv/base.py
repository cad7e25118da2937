"""What every spec is made of: the questions that each kind answers, and the sums that answers share."""

from __future__ import annotations

import math
from abc import abstractmethod

import msgspec

from octavo.config import DTYPE_BYTES
from octavo.errors import ConfigError


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`; `ConfigError` for a dtype that no plan knows."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ConfigError(
            f"{dtype!r} is not a dtype of a KV cache.", remedy="Use one of " + ", ".join(DTYPE_BYTES) + "."
        ) from None


def ceil_div(numerator: int, denominator: int) -> int:
    """`numerator / denominator`, rounded up."""
    return -(-numerator // denominator)


def most_blocks_touched(span: int, *, block_size: int, num_tokens: int, stride: int = 1) -> int:
    """The most blocks that `span` consecutive positions of a sequence of `num_tokens` can touch.

    The span may start at any multiple of `stride`. It touches most when it starts as late in its block as it may.
    """
    latest_start = block_size - math.gcd(stride, block_size)
    return ceil_div(min(span + latest_start, num_tokens), block_size)


class TokenVectors(msgspec.Struct, frozen=True, kw_only=True):
    """K and V of one token as parts of its elements: for each head K first, and V behind or inside it."""

    dtype: str
    num_heads: int
    head_elements: int
    """Elements from one head to the next."""
    key_size: int
    value_size: int
    value_offset: int
    """Elements from the first of K to the first of V."""


class KVCacheSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one layer keeps in the cache. Equal specs can share a group.

    The methods here are those of a kind that keeps every token; other kinds override them.
    """

    block_size: int
    """Tokens of one block."""
    page_size_padded: int | None = None
    """Bytes of one page where it is padded to another kind's page; None is no padding."""
    context_parallel_size: int = 1
    """Ranks over which the tokens of one request are spread; only kinds that keep every token can be spread."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the kind in tables and files, e.g. `sliding_window`."""

    @property
    @abstractmethod
    def token_bytes(self) -> int:
        """Bytes of one token of one layer."""

    @property
    def token_vectors(self) -> TokenVectors | None:
        """Where K and V of a token lie among its elements; None for a kind or a format without such vectors."""
        return None

    @property
    def content_bytes(self) -> int:
        """Bytes of one page that hold something."""
        return self.block_size * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included: the stride from a block to the next."""
        return self.content_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def keeps_every_token(self) -> bool:
        """Whether the blocks of a request cover all of its tokens, as for full attention."""
        return self.uniform_key[0] == "every token"

    @property
    def drops_blocks(self) -> bool:
        """Whether blocks left of what is read are given back, so that long steps need more of them than short ones."""
        return False

    @property
    def uniform_key(self) -> tuple[object, ...]:
        """Layers with equal keys can share one block table, even where their pages differ in size."""
        return ("every token", self.block_size, self.context_parallel_size)

    @property
    def prefix_cacheable(self) -> bool:
        """Whether another request with the same tokens may read this layer's blocks."""
        return True

    def max_blocks(self, num_tokens: int, *, chunk_tokens: int) -> int:
        """The most blocks that a request of `num_tokens` tokens ever holds at once.

        `chunk_tokens` is the most tokens that the request is given in one step (in all steps that have not settled,
        where steps overlap).
        """
        del chunk_tokens
        return ceil_div(ceil_div(num_tokens, self.context_parallel_size), self.block_size)

    def reference_max_blocks(self, num_tokens: int, *, in_flight_tokens: int) -> int:
        """The same as the reference engine counts it; `in_flight_tokens` are those of all requests together."""
        return self.max_blocks(num_tokens, chunk_tokens=in_flight_tokens)

    @property
    def reach(self) -> int | None:
        """The most tokens that any token reads, itself included; None is all tokens before it."""
        return None

    @property
    def fixed_bytes(self) -> int:
        """a of "a request of L tokens needs a + b * L bytes", for L at or above the reach. No rounding, no padding."""
        return 0 if self.reach is None else self.token_bytes * self.reach

    @property
    def bytes_per_token(self) -> int:
        """b of the same sum, for a token that lies on this rank."""
        return self.token_bytes if self.reach is None else 0

    def ideal_bytes(self, num_tokens: int) -> int:
        """Bytes of exactly the tokens that the last of `num_tokens` tokens reads: no block rounding, no padding.

        Where a token's reach depends on its place (chunked-local), the most that any of these tokens reads.
        """
        read = num_tokens if self.reach is None else min(num_tokens, self.reach)
        return self.token_bytes * ceil_div(read, self.context_parallel_size)
