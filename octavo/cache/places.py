"""Places of requests' tables: which get a block where a kind needs none in most of them; whether all are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

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
    moved: Container[int],
    num_spare: int,
) -> tuple[list[Sequence[int]], list[int]]:
    """(places to fill, length to come) of each table, for the tables to serve `num_tokens` tokens.

    The first new places of each table get `copied` blocks of another request, and cannot be left out. Places that are
    only worth having are, when all together need more than `num_spare` blocks. Groups that are `moved` need none.
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
        if group in moved:
            wanted = needs = ()
        places.append(wanted)
        needed.append(needs)
        stops.append(stop)
    return (places if sum(map(len, places)) <= num_spare else needed), stops


def dense_blocks(
    managers: Sequence[GroupManager], tables: Sequence[Ids], num_tokens: int, pool: BlockPool
) -> list[Ids]:
    """What each table is to be lengthened by to serve `num_tokens` tokens, with a block in every place."""
    counts = [
        manager.num_table_blocks(num_tokens) - len(table) for manager, table in zip(managers, tables, strict=True)
    ]
    blocks, new, start = pool.take(sum(counts)), list[Ids](), 0
    for count in counts:
        new.append(blocks[start : start + count])
        start += count
    return new


def lengthened(
    managers: Sequence[GroupManager],
    held: RequestBlocks,
    num_tokens: int,
    intervals: Sequence[int],
    pool: BlockPool,
    *,
    copied: Sequence[Sequence[int]],
    moved: Container[int],
    num_spare: int,
) -> list[Ids]:
    """What each table is to be lengthened by to serve `num_tokens` tokens: blocks of the pool in the places of
    `wanted_places`, the last block of groups that are `moved` in their last one, the null block in the others."""
    places, stops = wanted_places(
        managers, held, num_tokens, intervals, copied=copied, moved=moved, num_spare=num_spare
    )
    blocks = iter(pool.take(sum(map(len, places))))
    new = []
    for group, (table, wanted, stop) in enumerate(zip(held.tables, places, stops, strict=True)):
        taken = repeated(NULL_BLOCK, stop - len(table))
        for place in wanted:
            taken[place - len(table)] = next(blocks)
        if group in moved:
            _move_on(held, group, taken, pool)
        new.append(taken)
    return new


def movable_groups(
    managers: Sequence[GroupManager],
    tables: Sequence[Ids],
    num_computed: int,
    num_tokens: int,
    pool: BlockPool,
    *,
    num_own: int,
    most: int,
) -> list[int]:
    """Up to `most` groups whose table can serve `num_tokens` tokens without another block: its last one moves on.

    That one holds what the request's next token reads, and nobody else holds it.

    Parameters:
        tables: of a request with `num_computed` tokens.
        num_own: references that it has to its blocks: 1, or 0 while its blocks are hits that it has not adopted.
    """
    if most <= 0:
        return []
    found = [
        group
        for group, (manager, table) in enumerate(zip(managers, tables, strict=True))
        if manager.moves_on
        and 0 < len(table) < manager.num_table_blocks(num_tokens)
        and len(table) == manager.num_dropped_blocks(num_computed) + 1
        and pool.references(table[-1]) == num_own
    ]
    return found[:most]


def _move_on(held: RequestBlocks, group: int, new: Ids, pool: BlockPool) -> None:
    """Put the last block of a group into the last place of `new`, by which its table is to be lengthened."""
    table = held.tables[group]
    pool.forget(table[-1:])
    new[-1], table[-1] = table[-1], NULL_BLOCK
    held.num_dropped[group] = len(table)


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
