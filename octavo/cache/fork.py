"""A request that goes on from where another one stands: full blocks are shared, what lies behind them is copied.

    parent   [41][17][ 8][23]      c tokens reach into block 23
    child    [41][17][ 8][60]      60 is new; before anything is written, the device copies 23 to 60

Shared blocks are full, so nobody writes them again. The child gets them as it would get a prefix hit, and the blocks
to copy beside it (`ComputedBlocks.copied`).
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.flat_array import Ids, repeated
from octavo.cache.group_manager import GroupManager
from octavo.cache.request_blocks import ComputedBlocks, RequestBlocks
from octavo.kv.specs import NULL_BLOCK


def fork_blocks(
    held: RequestBlocks,
    managers: Sequence[GroupManager],
    *,
    num_tokens: int,
    num_settled: int,
    num_shared: int,
    num_nodes: int,
    generation: int,
) -> ComputedBlocks | None:
    """The first `num_tokens` tokens of the request that holds `held`, for a child; None when a group no longer has
    what the child's next token reads.

    Parameters:
        num_settled: tokens that the parent has in the cache; at least `num_tokens`.
        num_shared: tokens in blocks that may be shared, in whole blocks of every group.
        num_nodes: nodes of the prefix of that length.
    """
    shared, copied = [], []
    for manager, table in zip(managers, held.tables, strict=True):
        first, stop = manager.num_dropped_blocks(num_tokens), manager.num_table_blocks(num_tokens)
        needed = table[first:stop]
        if not manager.can_fork(num_tokens, num_settled) or not _are_kept(needed, stop - first):
            return None
        num_full = max(first, manager.num_full_blocks(num_shared))
        shared.append(repeated(NULL_BLOCK, first) + table[first:num_full])
        copied.append(table[num_full:stop].tolist())
    return ComputedBlocks(
        num_tokens=num_tokens,
        tables=tuple(shared),
        copied=tuple(copied),
        nodes=held.nodes[:num_nodes],
        generation=generation,
    )


def block_copies(computed: ComputedBlocks, block_ids: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(source, destination) of each block to copy, given the whole tables that `allocate_slots` answered."""
    copies: list[tuple[int, int]] = []
    for sources, shared, table in zip(computed.copied, computed.tables, block_ids, strict=False):
        copies += zip(sources, table[len(shared) : len(shared) + len(sources)], strict=True)
    return copies


def _are_kept(blocks: Ids, count: int) -> bool:
    """Whether a table still has all `count` blocks that it is to have in some places."""
    return len(blocks) == count and NULL_BLOCK not in blocks
