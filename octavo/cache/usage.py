"""How many blocks each group has: a count over all tables, for whoever looks now and then."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from octavo.cache.block_pool import BlockPool
from octavo.cache.flat_array import Ids, view
from octavo.kv.specs import NULL_BLOCK


class GroupBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one group."""

    used: int
    """Blocks that requests hold; one that several share counts once."""
    cached: int
    """Unreferenced blocks whose content a request can still find."""


def blocks_by_group(pool: BlockPool, tables: Sequence[Sequence[Ids]], num_groups: int) -> list[GroupBlocks]:
    """The blocks of each group, where `tables` are those of every request, by group. Looks at every block."""
    cached = np.bincount(pool.cached_keys() % max(1, num_groups), minlength=num_groups)
    found = []
    for group in range(num_groups):
        is_held = np.zeros(pool.num_blocks, dtype=np.bool_)
        for held in tables:
            is_held[view(held[group])] = True
        is_held[NULL_BLOCK] = False
        found.append(GroupBlocks(used=int(np.count_nonzero(is_held)), cached=int(cached[group])))
    return found
