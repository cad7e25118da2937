"""What passes through the cache manager's door, and what it remembers of one request."""

from __future__ import annotations

import msgspec

from octavo.cache.flat_array import Ids, no_ids


class BlockCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the blocks are. free + cached + used + 1 (null) = number of blocks."""

    free: int
    """Unreferenced, content worthless."""
    cached: int
    """Unreferenced, but a request with the same prefix can still use the content."""
    used: int
    """Referenced by at least one request."""


class ComputedBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix hit. Valid until cached content is lost; `allocate_slots` refuses a stale one."""

    num_tokens: int
    """Tokens that need not be computed; less than the request's tokens."""
    tables: tuple[Ids, ...]
    """Blocks to adopt, by group; 0 where the next token reads nothing."""
    junction: int = 0
    """Tokens of the longest hit of a single kind where that is longer than `num_tokens`, else 0. Other requests left
    the shared path here, so windowed groups keep their blocks at this boundary."""
    nodes: Ids = msgspec.field(default_factory=no_ids)
    """Nodes of the prefixes hit, one a hash block. To read only."""
    copied: tuple[list[int], ...] = ()
    """Blocks behind `tables`, by group, that another request holds and this one gets copies of; see `cache.fork`."""
    generation: int = 0
    """Of the prefix cache when this was looked up."""

    @property
    def block_ids(self) -> tuple[list[int], ...]:
        """`tables` as lists."""
        return tuple([table.tolist() for table in self.tables])


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the first admissions of requests, since the start."""

    query_tokens: int
    hit_tokens: int


class RequestBlocks:
    """What `KVCacheManager` keeps of one admitted request.

    Owns: its block tables and how far each group has got.
    Never: decides anything.
    """

    __slots__ = (
        "boundaries",
        "capacity",
        "next_drop",
        "nodes",
        "num_cached_tokens",
        "num_dropped",
        "quiet_until",
        "tables",
        "tip",
    )

    def __init__(self, *, tables: list[Ids], num_dropped: list[int], num_cached_tokens: int, tip: int) -> None:
        self.tables = tables
        """By group: block ids, 0 where nothing is kept."""
        self.num_dropped = num_dropped
        """By group: leading places of the table that hold no block any more."""
        self.num_cached_tokens = num_cached_tokens
        """Leading tokens whose blocks were offered to the prefix cache: a multiple of the scheduler block size."""
        self.nodes = no_ids()
        """Nodes of the prefixes so far, one a hash block."""
        self.tip = tip
        """The node held for this request: the last of `nodes`, or its root."""
        self.boundaries: tuple[int, ...] = ()
        """Numbers of tokens at which windowed groups keep their blocks in the prefix cache."""
        self.capacity = 0
        """Tokens for which the tables suffice."""
        self.next_drop = 0
        """Computed tokens from which on a group may drop a block."""
        self.quiet_until = 0
        """Up to this many tokens there is nothing to allocate, to cache or to drop."""
