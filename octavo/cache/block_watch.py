"""How long cached blocks live, measured on a sample of them: a pool that is made only where somebody asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

from octavo.cache.block_pool import BlockPool
from octavo.cache.flat_array import Ids, view


class BlockTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of the blocks of a sample, in seconds."""

    lifetimes_s: list[float]
    """From being handed out to losing the content to another request, of each block that did."""
    idle_s: list[float]
    """From the last use to that, of the same blocks in the same order."""
    reuse_gaps_s: list[float]
    """From the last use before to a prefix hit, of each hit."""


class WatchedBlockPool(BlockPool):
    """A `BlockPool` that notes the times of each block of a sample.

    A block is used when it is handed out, when a request adopts it as a prefix hit, and when it is freed. One that is
    handed out anew while it had no content worth keeping was not evicted, and begins a new life.

    Owns: beside what a pool owns, the times of the sampled blocks, and what was not taken yet.
    Never: does anything else than a pool does.

    Parameters:
        share: of the blocks, above 0 and at most 1.
        clock: seconds.
    """

    def __init__(self, num_blocks: int, *, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(num_blocks)
        self._period = max(1, round(1 / share))
        self._clock = clock
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        """When each was last in use."""
        self._lifetimes: list[float] = []
        self._idle: list[float] = []
        self._gaps: list[float] = []

    def take(self, count: int) -> Ids:
        blocks = super().take(count)
        self._note_birth(self._sampled(blocks))
        return blocks

    def take_one(self) -> int:
        block = super().take_one()
        if block % self._period == 0:
            self._note_birth([block])
        return block

    def touch(self, blocks: Ids) -> None:
        super().touch(blocks)
        now = self._clock()
        for block in self._sampled(blocks):
            if block in self._used:
                self._gaps.append(now - self._used[block])
            self._used[block] = now

    def free(self, blocks: Ids) -> None:
        super().free(blocks)
        now = self._clock()
        for block in self._sampled(blocks):
            if block in self._used:
                self._used[block] = now

    def take_times(self) -> BlockTimes:
        """What was measured since the last call."""
        times = BlockTimes(lifetimes_s=self._lifetimes, idle_s=self._idle, reuse_gaps_s=self._gaps)
        self._lifetimes, self._idle, self._gaps = [], [], []
        return times

    def _evict(self, count: int) -> Ids:
        blocks = super()._evict(count)
        now = self._clock()
        for block in self._sampled(blocks):
            if block in self._born:
                self._lifetimes.append(now - self._born[block])
                self._idle.append(now - self._used[block])
        return blocks

    def _note_birth(self, blocks: list[int]) -> None:
        if blocks:
            now = self._clock()
            self._born.update((block, now) for block in blocks)
            self._used.update((block, now) for block in blocks)

    def _sampled(self, blocks: Ids) -> list[int]:
        """Those of `blocks` that are of the sample; the null block never is."""
        ids = view(blocks)
        sampled: list[int] = ids[(ids % self._period == 0) & (ids != 0)].astype(np.int64).tolist()
        return sampled
