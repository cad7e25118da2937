"""Counts the cache now and then: what costs a look at every block is not done in every step."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.cache.block_watch import WatchedBlockPool
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.messages import CacheFigures

EVERY_S = 1.0
"""Between two counts."""

SHARE = 0.005
"""Most of the time that counting may take; a cache that takes long to count is counted less often."""

QUICK_S = 0.005
"""A count that takes no longer may be made out of turn."""


class CacheCount:
    """Owns: when to count next. Never: changes the cache.

    Parameters:
        pool: the manager's pool, where it measures the lifetimes of blocks.
        clock: seconds.
        cpu_clock: seconds that this thread has computed: a busy machine does not make a count look slow.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        pool: WatchedBlockPool | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._manager = manager
        self._pool = pool
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._due = self._cost = 0.0
        self._cached: list[int] = []

    def figures(self, *, is_idle: bool) -> CacheFigures | None:
        """The figures, when it is time, or when nobody is left who would bring the next ones: then of a cache that
        takes long to count with the cached blocks of the last time."""
        now = self._clock()
        if now < self._due and not is_idle:
            return None
        if now < self._due and self._cost > QUICK_S:
            return CacheFigures(used_blocks=[0] * len(self._cached), cached_blocks=self._cached)
        started = self._cpu_clock()
        groups = self._manager.blocks_by_group()
        self._cost = self._cpu_clock() - started
        self._due = now + max(EVERY_S, self._cost / SHARE)
        self._cached = [group.cached for group in groups]
        times = self._pool.take_times() if self._pool is not None else None
        return CacheFigures(
            used_blocks=[group.used for group in groups],
            cached_blocks=self._cached,
            lifetimes_s=times.lifetimes_s if times is not None else [],
            idle_s=times.idle_s if times is not None else [],
            reuse_gaps_s=times.reuse_gaps_s if times is not None else [],
        )
