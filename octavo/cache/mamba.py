"""Mamba and linear attention: one state per request, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.group_manager import NEVER, GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.kv.specs import MambaSpec


class MambaManager(GroupManager):
    """Gives a request its state blocks once; states are overwritten at every step, so nothing is shared."""

    caches_prefixes = False

    def __init__(self, spec: MambaSpec, *, max_model_len: int, max_chunk_tokens: int) -> None:
        super().__init__(spec, max_model_len=max_model_len, max_chunk_tokens=max_chunk_tokens)
        self.num_states = spec.max_blocks(max_model_len, chunk_tokens=max_chunk_tokens)

    def num_table_blocks(self, num_tokens: int) -> int:
        return self.num_states if num_tokens > 0 else 0

    def num_table_tokens(self, num_blocks: int) -> int:
        return NEVER if num_blocks else 0

    def can_fork(self, num_tokens: int, num_settled: int) -> bool:
        return num_tokens == num_settled

    def num_full_blocks(self, num_tokens: int) -> int:
        return 0

    def find_hit(
        self, prefixes: PrefixCache, nodes: Sequence[int], groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        return 0
