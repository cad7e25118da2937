"""The longest prefix on which all groups agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.cache.contents import block_contents, root_content
from octavo.cache.flat_array import Ids, IdView, ids_of, no_ids, repeated, view
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import NO_NODE, PrefixCache
from octavo.cache.request_blocks import ComputedBlocks
from octavo.kv.specs import NULL_BLOCK
from octavo.request import Request


class PrefixLookup:
    """Looks up requests in the prefix cache; changes nothing.

    Groups cache and evict apart, so each kind answers for itself how long a prefix it could go on from, and each may
    shorten the candidate of the others. The hit is the fixed point: the longest prefix that every kind accepts.

    Owns: nothing but the managers' numbers.
    """

    def __init__(self, managers: Sequence[GroupManager], prefixes: PrefixCache) -> None:
        sizes = [manager.block_size for manager in managers] or [1]
        self.scheduler_block_size = math.lcm(*sizes)
        """Hits are multiples of this many tokens."""
        self.hash_block_size = math.gcd(*sizes)
        """Tokens of one step in the chain of prefixes."""
        self._managers = managers
        self._prefixes = prefixes
        self._kinds = _kinds(managers)

    def find(self, request: Request) -> ComputedBlocks:
        """The longest hit of `request`, shorter than the request by at least one token."""
        prefixes, step = self._prefixes, self.hash_block_size
        limit = request.num_tokens - 1
        root = prefixes.root(root_content(salt=request.cache_salt))
        nodes = no_ids()
        if root != NO_NODE and limit >= step:
            nodes = prefixes.follow(root, block_contents(request.token_ids, step, 0, limit // step))
        hit, longest = self._agree(view(nodes), limit)
        del nodes[hit // step :]
        return ComputedBlocks(
            num_tokens=hit,
            tables=tuple([self._table(group, nodes, hit) for group in range(len(self._managers))]),
            junction=longest if longest > hit else 0,
            nodes=nodes,
            generation=prefixes.generation,
        )

    def _table(self, group: int, nodes: Ids, hit: int) -> Ids:
        """The blocks of a hit of `hit` tokens, whose prefixes are `nodes`."""
        if not hit:
            return no_ids()
        manager = self._managers[group]
        first, ratio = manager.num_dropped_blocks(hit), manager.block_size // self.hash_block_size
        ends = view(nodes)[ratio - 1 :: ratio]
        return repeated(NULL_BLOCK, first) + ids_of(self._prefixes.blocks(ends[first:], group))

    def _agree(self, nodes: IdView, limit: int) -> tuple[int, int]:
        """(tokens of the longest hit that every kind accepts, tokens of the longest hit that one kind found)."""
        step, alignment = self.hash_block_size, self.scheduler_block_size
        length = limit
        longest = 0
        num_agreed = 0
        while num_agreed < len(self._kinds):
            for manager, groups in self._kinds:
                ratio = manager.block_size // step
                hit = manager.find_hit(self._prefixes, nodes[ratio - 1 :: ratio], groups, length, alignment)
                longest = max(longest, hit)
                num_agreed = num_agreed + 1 if hit == length else 1
                length = hit
                if num_agreed >= len(self._kinds) or not length:
                    return length, longest
        return length, longest


def _kinds(managers: Sequence[GroupManager]) -> list[tuple[GroupManager, tuple[int, ...]]]:
    """Groups of equal spec under one manager each; those that read the whole prefix come first."""
    kinds: list[tuple[GroupManager, list[int]]] = []
    for group, manager in enumerate(managers):
        for known, groups in kinds:
            if known.spec == manager.spec:
                groups.append(group)
                break
        else:
            kinds.append((manager, [group]))
    kinds.sort(key=lambda kind: not kind[0].reads_whole_prefix)
    return [(manager, tuple(groups)) for manager, groups in kinds]
