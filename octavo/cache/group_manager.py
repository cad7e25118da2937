"""What a kind of attention must answer so that `KVCacheManager` can serve it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

from octavo.cache.flat_array import IdView
from octavo.cache.prefix_cache import PrefixCache
from octavo.errors import ConfigError
from octavo.kv.specs import LayerSpec

NEVER = 2**62
"""A number of tokens that no request reaches."""


class GroupManager(abc.ABC):
    """The rules of one group's kind: what it needs, what it may drop, what counts as a hit, what is worth caching.

    Owns: its spec's numbers, nothing else.
    Never: holds blocks or knows requests; the tables live in `KVCacheManager`, so one instance serves every request.

    Parameters:
        spec: the group's spec.
        max_model_len, max_chunk_tokens: from the plan; they bound what one request holds at once.
    """

    caches_prefixes: ClassVar[bool] = True
    """False for a kind whose content cannot be shared by requests."""
    is_dense: ClassVar[bool] = True
    """Whether a table has a place for every `block_size` tokens, and each new place gets a block."""
    skips_places: ClassVar[bool] = False
    """True for a kind that needs no block in some places of its table."""
    moves_on: ClassVar[bool] = False
    """True for a kind that reads its last block alone, and may overwrite it with what belongs into a later place."""
    reads_whole_prefix: ClassVar[bool] = False
    """True for a kind for which every shorter prefix of a hit is a hit too."""

    def __init__(self, spec: LayerSpec, *, max_model_len: int, max_chunk_tokens: int) -> None:
        self.spec = spec
        self.block_size = spec.block_size * spec.context_parallel_size
        self.max_model_len = max_model_len
        self.max_chunk_tokens = max_chunk_tokens

    def num_table_blocks(self, num_tokens: int) -> int:
        """Length of the table of a request of `num_tokens`, dropped places included."""
        return -(-num_tokens // self.block_size)

    def num_table_tokens(self, num_blocks: int) -> int:
        """Most tokens for which a table of `num_blocks` suffices."""
        return num_blocks * self.block_size

    def num_new_blocks(self, num_held: int, num_tokens: int, num_copied: int = 0) -> int:
        """Blocks that must be there for a table of `num_held` places to serve `num_tokens` tokens, where the first
        `num_copied` of them get copies of another request's."""
        return self.num_table_blocks(num_tokens) - num_held

    def places_to_fill(self, start: int, stop: int, boundaries: Sequence[int], interval: int) -> Sequence[int]:
        """Which new places `start` .. `stop - 1` of a table shall hold a block, in order; the last of them must.

        Parameters: as of `blocks_to_cache`.
        """
        return range(start, stop)

    def retention_interval(self, wanted: int | None, scheduler_block_size: int) -> int:
        """The interval of `blocks_to_cache` when the user wants `wanted`; None is the kind's own habit."""
        return scheduler_block_size if wanted is None else wanted

    def max_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` holds at once, run in steps of at most `max_chunk_tokens`."""
        return self.spec.max_blocks(num_tokens, chunk_tokens=self.max_chunk_tokens)

    def max_growth(self, num_computed: int, num_tokens: int) -> int:
        """Most blocks that a request may still take from the pool on its way from `num_computed` to `num_tokens`.

        What it drops on the way is not counted as given back: another request may hold it too.
        """
        return self.max_blocks(num_tokens)

    def num_dropped_blocks(self, num_computed: int) -> int:
        """Leading blocks that no later token reads, once `num_computed` tokens are in the cache."""
        return 0

    def next_drop(self, num_dropped: int) -> int:
        """The number of computed tokens at which more than `num_dropped` leading blocks may be dropped."""
        return NEVER

    def can_fork(self, num_tokens: int, num_settled: int) -> bool:
        """Whether a request that has computed `num_settled` tokens still holds what it held after `num_tokens`."""
        return True

    def num_full_blocks(self, num_tokens: int) -> int:
        """Leading places of a table that no token from number `num_tokens` on writes."""
        return num_tokens // self.block_size

    @abc.abstractmethod
    def find_hit(
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        """Tokens of the longest usable hit, in whole blocks and in multiples of `alignment`; changes nothing.

        Parameters:
            nodes: the request's known prefixes, one for each block of this kind's size.
            groups: groups of this spec; a block counts only when every one of them has it.
            max_tokens: the hit may not be longer.
        """

    def blocks_to_cache(self, start: int, stop: int, boundaries: Sequence[int], interval: int) -> Sequence[int]:
        """Which of the full blocks `start` .. `stop - 1` shall enter the prefix cache.

        A kind that reads the whole prefix keeps them all; one that reads only the end keeps what it reads there.

        Parameters:
            boundaries: numbers of tokens after which a later request is expected to go on.
            interval: above 0, every multiple of it is such a boundary too.
        """
        return range(start, stop)


def check_retention(interval: int, scheduler_block_size: int) -> None:
    """Raise `ConfigError` for an interval at which no prefix hit can end."""
    if interval < 0 or interval % scheduler_block_size:
        raise ConfigError(
            f"The retention interval is {interval} tokens; prefix hits are multiples of {scheduler_block_size} tokens.",
            remedy="Set it to a multiple of that, to 0, or leave it out.",
            retention_interval=interval,
            scheduler_block_size=scheduler_block_size,
        )
