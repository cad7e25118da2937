"""Mamba and linear attention: a state of fixed size, kept once for a request or at some of its block borders."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.flat_array import IdView
from octavo.cache.group_manager import NEVER, GroupManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.kv.specs import MambaSpec


class MambaManager(GroupManager):
    """Gives a request its state blocks once; states are overwritten at every step, so nothing is shared."""

    caches_prefixes = False
    is_dense = False

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
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        return 0


class AlignedMambaManager(GroupManager):
    """Keeps the state after a request's last token in the block of that token, and those at borders worth returning to.

    With c tokens computed, the next step reads the block of token c - 1 and no other; it writes the block of its own
    last token, which is another one once a border lies between: so what is behind a border never changes again and can
    be shared. A hit of c tokens, a multiple of the block size, needs the one block that ends there.

    A state at every border of a prompt would cost as much as the layers that keep tokens. A request keeps it where its
    prompt can be replayed from, and where it leaves a path that other requests share; while it generates, where its
    steps end at a border anyway. Only the block of its last token is reserved for it: the others are kept while there
    is room. Without any, the block moves on to the place of the step's last token: its state is overwritten by the one
    there, and the border behind it can be found no more.
    """

    is_dense = False
    skips_places = True
    moves_on = True

    def num_dropped_blocks(self, num_computed: int) -> int:
        return max(0, num_computed - 1) // self.block_size

    def next_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + 1

    def num_new_blocks(self, num_held: int, num_tokens: int, num_copied: int = 0) -> int:
        return min(self.num_table_blocks(num_tokens) - num_held, num_copied + 1)

    def can_fork(self, num_tokens: int, num_settled: int) -> bool:
        return num_tokens == num_settled

    def places_to_fill(self, start: int, stop: int, boundaries: Sequence[int], interval: int) -> list[int]:
        ends = [boundary // self.block_size for boundary in boundaries]
        if interval:
            ends.extend(end // self.block_size for end in range(interval, stop * self.block_size, interval))
        return [*sorted({end - 1 for end in ends if start < end < stop}), stop - 1] if stop > start else []

    def retention_interval(self, wanted: int | None, scheduler_block_size: int) -> int:
        return wanted or 0

    def find_hit(
        self, prefixes: PrefixCache, nodes: IdView, groups: Sequence[int], max_tokens: int, alignment: int
    ) -> int:
        step = alignment // self.block_size
        ends = prefixes.cached(nodes[step - 1 : max_tokens // self.block_size : step], groups).nonzero()[0]
        return (int(ends[-1]) + 1) * alignment if len(ends) else 0

    def blocks_to_cache(self, start: int, stop: int, boundaries: Sequence[int], interval: int) -> Sequence[int]:
        replay = boundaries[0] if boundaries else 0
        return [place for place in range(start, stop) if self._is_kept(place, replay, boundaries, interval)]

    def _is_kept(self, place: int, replay: int, boundaries: Sequence[int], interval: int) -> bool:
        end = (place + 1) * self.block_size
        return end > replay or end in boundaries or (interval > 0 and end % interval == 0)


def mamba_manager(spec: MambaSpec, *, max_model_len: int, max_chunk_tokens: int) -> GroupManager:
    """The manager of a group of states, by the mode in which they are kept."""
    kind = AlignedMambaManager if spec.cache_mode == "align" else MambaManager
    return kind(spec, max_model_len=max_model_len, max_chunk_tokens=max_chunk_tokens)
