"""Chunked local attention: a token reads the tokens of its own chunk, up to itself."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.flat_array import IdView
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.kv.specs import ChunkedLocalSpec


class ChunkedLocalManager(GroupManager):
    """Drops the blocks of finished chunks; a hit needs only the blocks of the chunk that the next token falls into."""

    def __init__(self, spec: ChunkedLocalSpec, *, max_model_len: int, max_chunk_tokens: int) -> None:
        super().__init__(spec, max_model_len=max_model_len, max_chunk_tokens=max_chunk_tokens)
        self.chunk = spec.chunk

    def num_dropped_blocks(self, num_computed: int) -> int:
        return num_computed // self.chunk * self.chunk // self.block_size

    def next_drop(self, num_dropped: int) -> int:
        return -(-(num_dropped + 1) * self.block_size // self.chunk) * self.chunk

    def find_hit(
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        limit = max_tokens
        while True:
            first = self.num_dropped_blocks(limit)
            inside = prefixes.num_cached(nodes[first : limit // self.block_size], groups)
            hit = (first + inside) * self.block_size
            hit -= hit % alignment
            if self.num_dropped_blocks(hit) == first:
                return hit
            # Rounding down led out of the chunk: what counts there are that chunk's own blocks.
            limit = hit
