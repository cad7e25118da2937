"""Full attention, and whatever reads the whole prefix in the same way (multi-head latent attention)."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.flat_array import IdView
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import PrefixCache


class FullAttentionManager(GroupManager):
    """Keeps every block; a hit is the run of cached blocks from the start."""

    reads_whole_prefix = True

    def max_growth(self, num_computed: int, num_tokens: int) -> int:
        return self.num_table_blocks(num_tokens) - self.num_table_blocks(num_computed)

    def find_hit(
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        num_tokens = prefixes.num_cached(nodes[: max_tokens // self.block_size], groups) * self.block_size
        return num_tokens - num_tokens % alignment
