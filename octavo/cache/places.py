"""Places of requests' tables: which get a block where a kind needs none in most of them; whether all are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.flat_array import Ids, repeated
from octavo.cache.group_manager import GroupManager
from octavo.cache.request_blocks import RequestBlocks
from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK


def wanted_places(
    managers: Sequence[GroupManager],
    held: RequestBlocks,
    num_tokens: int,
    intervals: Sequence[int],
    *,
    copied: Sequence[Sequence[int]],
    num_spare: int,
) -> tuple[list[Sequence[int]], list[int]]:
    """(places to fill, length to come) of each table, for the tables to serve `num_tokens` tokens.

    The first new places of each table get `copied` blocks of another request, and cannot be left out. Places that are
    only worth having are, when all together need more than `num_spare` blocks.
    """
    places: list[Sequence[int]] = []
    needed: list[Sequence[int]] = []
    stops: list[int] = []
    for group, (manager, table, interval) in enumerate(zip(managers, held.tables, intervals, strict=True)):
        start, stop = len(table), manager.num_table_blocks(num_tokens)
        wanted = manager.places_to_fill(start, stop, held.boundaries, interval)
        needs = wanted[len(wanted) - manager.num_new_blocks(start, num_tokens) :]
        if copied and copied[group] and manager.skips_places:
            fixed = range(start, min(stop, start + len(copied[group])))
            wanted, needs = sorted({*wanted, *fixed}), sorted({*needs, *fixed})
        places.append(wanted)
        needed.append(needs)
        stops.append(stop)
    return (places if sum(map(len, places)) <= num_spare else needed), stops


def fill_places(
    tables: Sequence[Ids], places: Sequence[Sequence[int]], stops: Sequence[int], pool: BlockPool
) -> list[Ids]:
    """What each table is to be lengthened by: blocks of the pool in `places`, the null block in the others."""
    blocks = iter(pool.take(sum(map(len, places))))
    new = []
    for table, wanted, stop in zip(tables, places, stops, strict=True):
        taken = repeated(NULL_BLOCK, stop - len(table))
        for place in wanted:
            taken[place - len(table)] = next(blocks)
        new.append(taken)
    return new


def blocks_to_come(manager: GroupManager, table: Sequence[int], num_computed: int, num_tokens: int) -> int:
    """Most blocks that a request needs at once on its way from `num_computed` tokens, for which it has `table`, to
    `num_tokens`, beside those of the table."""
    num_dropped = manager.num_dropped_blocks(num_computed)
    at_once = min(manager.num_table_blocks(num_tokens) - num_dropped, manager.max_blocks(num_tokens))
    return max(0, at_once - (len(table) - num_dropped))


def check_references(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Raise `InvariantError` unless each block counts as many references as it has places in `tables`."""
    references = Counter(block for table in tables for block in table)
    for block in range(NULL_BLOCK + 1, pool.num_blocks):
        if references[block] != pool.references(block):
            raise InvariantError(
                f"block {block} stands in {references[block]} tables and counts {pool.references(block)} references"
            )
