"""What fits into the budget: blocks per rank, blocks one request may need, and the borders between fitting and not.

A request of L tokens fits when every rank holds the blocks it can ever need and the null block beside them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from octavo.kv.grouping import BlocksOf, Fold
from octavo.kv.specs import LayerSpec


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks a group must be able to give one request at once."""

    exact: bool
    """What Octavo's cache manager needs; else the reference's formula."""
    chunk_tokens: int
    """Most tokens one request may have in flight (exact)."""
    in_flight_tokens: int
    """Tokens that all requests together may have in flight (the reference's formula)."""

    def blocks_of(self, num_tokens: int) -> BlocksOf:
        """Blocks of one group for a request of `num_tokens` tokens, as a function of the group's spec."""

        def blocks(spec: LayerSpec) -> int:
            if self.exact:
                return spec.max_blocks(num_tokens, chunk_tokens=min(self.chunk_tokens, num_tokens))
            return spec.reference_max_blocks(num_tokens, in_flight_tokens=self.in_flight_tokens)

        return blocks

    def blocks(self, fold: Fold, num_tokens: int) -> int:
        """Blocks of all groups together for a request of `num_tokens` tokens."""
        return fold.blocks_per_request(self.blocks_of(num_tokens))


class Budget(NamedTuple):
    """What each rank may spend on its cache."""

    available: tuple[int, ...]
    """Bytes by rank."""
    stage_of_rank: tuple[int, ...]
    override: int | None
    """Exactly this many blocks instead of as many as fit."""

    def block_bytes(self, fold: Fold, rank: int) -> int:
        """Bytes that one block takes on `rank`; 0 where it holds no cached layer."""
        return fold.bytes_per_block[self.stage_of_rank[rank]]

    def blocks_of_rank(self, fold: Fold, rank: int) -> int | None:
        """Blocks that `rank` holds, null block included; None where it holds no cached layer."""
        cost = self.block_bytes(fold, rank)
        if not cost:
            return None
        return self.available[rank] // cost if self.override is None else self.override

    def scarcest(self, fold: Fold) -> int:
        """The rank that holds the fewest blocks."""
        counts = [(self.blocks_of_rank(fold, rank), rank) for rank in range(len(self.available))]
        return min((count, rank) for count, rank in counts if count is not None)[1]

    def num_blocks(self, fold: Fold) -> int:
        """Blocks of a plan, null block included: the fewest of all ranks that hold cached layers."""
        return self.blocks_of_rank(fold, self.scarcest(fold)) or 0

    def fits(self, fold: Fold, reservation: Reservation, num_tokens: int) -> bool:
        """Whether one request of `num_tokens` fits beside the null block."""
        return reservation.blocks(fold, num_tokens) < self.num_blocks(fold)


def longest_length(fold: Fold, reservation: Reservation, *, num_blocks: int, ceiling: int) -> int:
    """The longest request of 1 to `ceiling` tokens that fits into `num_blocks`, null block included; 0: none fits."""
    return bisect_right(range(1, ceiling + 1), num_blocks - 1, key=lambda length: reservation.blocks(fold, length))


def smallest_budget(fold: Fold, num_blocks: int) -> int:
    """The least bytes that hold `num_blocks`, when every rank is given the same."""
    return num_blocks * max(fold.bytes_per_block)
