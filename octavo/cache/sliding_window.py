"""Sliding-window attention: a token reads itself and the `window - 1` tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.cache.flat_array import IdView
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.kv.specs import SlidingWindowSpec


class SlidingWindowManager(GroupManager):
    """Drops blocks left of the window; a hit needs only the blocks that the next token reads.

    With c tokens computed, the next token (position c) reads positions c - window + 1 .. c, so the first
    floor((c - window + 1) / block_size) blocks are read no more, and a hit of c tokens, a multiple of the block size,
    needs the ceil((window - 1) / block_size) blocks before it.
    """

    def __init__(self, spec: SlidingWindowSpec, *, max_model_len: int, max_chunk_tokens: int) -> None:
        super().__init__(spec, max_model_len=max_model_len, max_chunk_tokens=max_chunk_tokens)
        self.window = spec.window
        self.num_window_blocks = max(1, -(-(spec.window - 1) // spec.block_size))

    def num_dropped_blocks(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def next_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def find_hit(
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        step = alignment // self.block_size
        last = min(max_tokens // self.block_size, len(nodes)) // step * step
        if prefixes.cached(nodes[max(0, last - self.num_window_blocks) : last], groups).all():
            return last * self.block_size
        ends = np.arange(last + 1)
        # How many blocks before each end are cached without a gap.
        gaps = np.where(prefixes.cached(nodes[:last], groups), 0, ends[1:])
        runs = ends - np.maximum.accumulate(np.concatenate(([0], gaps)))
        hits = ends[::step][(runs >= np.minimum(ends, self.num_window_blocks))[::step]]
        return int(hits[-1]) * self.block_size

    def blocks_to_cache(self, start: int, stop: int, boundaries: Sequence[int], interval: int) -> Sequence[int]:
        size, reach = self.block_size, self.num_window_blocks
        if 0 < interval <= reach * size:
            return range(start, stop)
        ends = [boundary // size for boundary in boundaries]
        if interval:
            ends.extend(range(start * size // interval * interval // size, stop + reach + 1, interval // size))
        wanted: set[int] = set()
        for end in ends:
            wanted.update(range(max(start, end - reach), min(stop, end)))
        return sorted(wanted)
