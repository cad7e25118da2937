"""Which of a request's full blocks can be found by later requests, and under which prefix."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from octavo.cache.contents import block_contents
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.request_blocks import RequestBlocks
from octavo.kv.specs import NULL_BLOCK
from octavo.request import Request


class PrefixWriter:
    """Enters the full blocks of requests into the prefix cache.

    Owns: nothing but the managers' numbers.
    Never: takes or frees blocks.

    Parameters:
        intervals: by group, see `GroupManager.blocks_to_cache`.
        scheduler_block_size: blocks are offered so many tokens at a time: no hit ends in between.
        hash_block_size: tokens of one step in the chain of prefixes.
    """

    def __init__(
        self,
        managers: Sequence[GroupManager],
        prefixes: PrefixCache,
        *,
        intervals: Sequence[int],
        scheduler_block_size: int,
        hash_block_size: int,
    ) -> None:
        self._managers = managers
        self._prefixes = prefixes
        self._intervals = intervals
        self._size = scheduler_block_size
        self._step = hash_block_size

    def enter(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Offer the blocks of the first `num_tokens` tokens, all of them known, that have not been offered before."""
        size = self._size
        first, stop = held.num_cached_tokens, num_tokens - num_tokens % size
        if stop <= first:
            return
        if stop - first == size == self._step and len(held.nodes) * size == first:
            self._enter_block(request, held, first // size)
        else:
            self._learn_prefixes(request, held, stop)
            for group in range(len(self._managers)):
                self._enter_group(held, group, first, stop)
        held.num_cached_tokens = stop

    def _enter_block(self, request: Request, held: RequestBlocks, place: int) -> None:
        """As below, for the next block of each group: what a request that generates asks for."""
        size, prefixes = self._size, self._prefixes
        tokens = request.token_ids[place * size : (place + 1) * size].tobytes()
        held.tip = node = prefixes.extend_by_one(held.tip, tokens)
        held.nodes.append(node)
        for group, manager in enumerate(self._managers):
            block = held.tables[group][place]
            if block and place in manager.blocks_to_cache(place, place + 1, held.boundaries, self._intervals[group]):
                prefixes.store_one(block, node, group)

    def _enter_group(self, held: RequestBlocks, group: int, first: int, stop: int) -> None:
        """Let blocks of one group be found that hold the tokens from number `first` to `stop` - 1."""
        manager = self._managers[group]
        size, ratio = manager.block_size, manager.block_size // self._step
        begin = max(first // size, held.num_dropped[group])
        places = manager.blocks_to_cache(begin, stop // size, held.boundaries, self._intervals[group])
        table, nodes = held.tables[group], held.nodes
        if isinstance(places, range):
            blocks = table[places.start : places.stop]
            ends = nodes[places.start * ratio + ratio - 1 : places.stop * ratio : ratio]
        else:
            kept = [place for place in places if table[place] != NULL_BLOCK] if manager.skips_places else places
            blocks = array("Q", [table[place] for place in kept])
            ends = array("Q", [nodes[place * ratio + ratio - 1] for place in kept])
        self._prefixes.store(blocks, ends, group)

    def _learn_prefixes(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Extend the request's chain of nodes to its first `num_tokens` tokens."""
        nodes, step = held.nodes, self._step
        if num_tokens // step > len(nodes):
            contents = block_contents(request.token_ids, step, len(nodes), num_tokens // step)
            nodes += self._prefixes.extend(held.tip, contents)
            held.tip = nodes[-1]
