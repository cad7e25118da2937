"""Who runs: in order, the best first, at most one of them protected."""

from __future__ import annotations

from bisect import insort
from collections.abc import Set as AbstractSet
from operator import attrgetter

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.request_blocks import ComputedBlocks
from octavo.sched.queue import Entry

ADMISSION_SPARE = (1, 4, 16, 64)
"""Blocks, per group and running request that may grow, that admitting a request preempted k times must leave free.

So the others can grow for a while before anybody loses blocks again. A request that was preempted as often as there
are entries is protected when it runs again.
"""


class RunningList:
    """The running requests.

    Owns: their order, which of them is protected, how many blocks others must leave to it.
    Never: frees blocks, or takes those that others may need.
    """

    def __init__(self, manager: KVCacheManager, admission_spare: tuple[int, ...]) -> None:
        self.entries: list[Entry] = []
        """Best first. Changed through the methods only."""
        self.protected: Entry | None = None
        self.max_preemptions = len(admission_spare)
        self._admission_spare = admission_spare
        self._manager = manager
        self._num_groups = len(manager.managers)
        self._block_size = min((kind.block_size for kind in manager.managers), default=1)
        growing = [kind.block_size for kind in manager.managers if kind.is_dense]
        self._num_growing, self._growth = len(growing), min(growing, default=1)

    def __len__(self) -> int:
        return len(self.entries)

    def may_admit(self, entry: Entry) -> bool:
        """False for a request that must be protected while another one is."""
        return self.protected is None or entry.request.num_preemptions < self.max_preemptions

    def add(self, entry: Entry) -> None:
        """Put `entry` in its place; it is protected from now on if it was preempted `max_preemptions` times."""
        insort(self.entries, entry, key=attrgetter("key"))
        if entry.request.num_preemptions >= self.max_preemptions:
            self.protected = entry

    def discard(self, gone: AbstractSet[Entry]) -> None:
        """Take entries out."""
        if gone:
            self.entries = [entry for entry in self.entries if entry not in gone]
            if self.protected in gone:
                self.protected = None

    def pop_worst(self, first: int) -> Entry | None:
        """Take the worst unprotected of `entries[first:]` out; None when there is none."""
        index = len(self.entries) - 1
        if index >= first and self.entries[index] is self.protected:
            index -= 1
        return self.entries.pop(index) if index >= first else None

    def allocate(
        self, entry: Entry, num_new: int, leave_free: int, computed: ComputedBlocks | None = None
    ) -> tuple[int, tuple[list[int], ...] | None]:
        """(tokens, blocks for them as of `KVCacheManager.allocate_slots`), for up to `num_new` tokens.

        More than the plan has reserved for are given only out of what the others cannot need in a step; where even the
        reserved ones find no blocks, that number comes with None.
        """
        allocate, request, sure = self._manager.allocate_slots, entry.request, self._manager.max_chunk_tokens
        if num_new > sure and entry is not self.protected:
            leave_more = leave_free + self._blocks_for_others(entry, sure)
            while num_new > sure:
                block_ids = allocate(request, num_new, computed, leave_free=leave_more)
                if block_ids is not None:
                    return num_new, block_ids
                num_new = max(sure, num_new * 7 // 8)
        num_new = min(num_new, sure)
        return num_new, allocate(request, num_new, computed, leave_free=leave_free)

    def _blocks_for_others(self, entry: Entry, max_tokens: int) -> int:
        """Most blocks that the other requests can take in a step of up to `max_tokens` tokens each."""
        blocks = 0
        for other in self.entries:
            if other is not entry:
                missing = other.request.num_tokens - other.request.num_computed_tokens
                blocks += 1 + min(missing, max_tokens) // self._block_size
        return blocks * self._num_groups

    def reserved_blocks(self) -> int:
        """Available blocks that belong to the protected request: all that it may still take until its end."""
        if self.protected is None:
            return 0
        return self._manager.max_growth(self.protected.request.num_computed_tokens, self.protected.longest)

    def blocks_to_leave(self, entry: Entry, num_computed: int) -> int:
        """Blocks that must stay available when `entry` is admitted with `num_computed` tokens.

        Nothing where nobody runs: the request fits the empty pool, and there is nobody to leave anything to. A running
        request whose last block of tokens is there takes no more, and states need no second one: their block moves on.
        """
        num_preemptions = entry.request.num_preemptions
        if not self.entries:
            return 0
        if num_preemptions >= self.max_preemptions:
            return self._manager.max_growth(num_computed, entry.longest)
        size = self._growth
        num_growing = sum(
            [-(-other.request.num_computed_tokens // size) * size < other.longest for other in self.entries]
        )
        return self.reserved_blocks() + self._admission_spare[num_preemptions] * num_growing * self._num_growing
