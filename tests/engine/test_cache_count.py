"""When the cache is counted: now and then, and when nobody is left."""

from __future__ import annotations

from octavo.cache.block_watch import WatchedBlockPool
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.engine.cache_count import EVERY_S, SHARE, CacheCount
from octavo.messages import CacheFigures
from tests.cache.build import config, full, request


class Clock:
    """Goes on by `step` whenever it is looked at."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 10.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_the_cache_is_counted_every_second_and_at_the_end() -> None:
    clock = Clock()
    pool = WatchedBlockPool(20, share=1, clock=clock)
    cache = KVCacheManager(config(full(4), num_blocks=20), enable_caching=True, pool=pool)
    count = CacheCount(cache, pool, clock=clock)
    asked = request("a", range(9))
    cache.allocate_slots(asked, 9)
    assert count.figures(is_idle=False) == CacheFigures(used_blocks=[3], cached_blocks=[0])
    clock.now += EVERY_S / 2
    assert count.figures(is_idle=False) is None
    cache.free(asked)
    assert count.figures(is_idle=True) == CacheFigures(used_blocks=[0], cached_blocks=[2])
    clock.now += EVERY_S
    cache.allocate_slots(request("b", range(100, 176)), 76)
    figures = count.figures(is_idle=False)
    assert figures is not None
    assert figures.used_blocks == [19]
    assert len(figures.lifetimes_s) == len(figures.idle_s) == 2
    assert figures.idle_s == [EVERY_S] * 2


def test_what_takes_long_to_count_is_counted_less_often() -> None:
    clock = Clock()
    cache = KVCacheManager(config(full(4)), enable_caching=True)
    count = CacheCount(cache, None, clock=clock, cpu_clock=Clock(step=0.1))
    assert count.figures(is_idle=False) is not None
    clock.now += 0.1 / SHARE - 1
    assert count.figures(is_idle=False) is None
    assert count.figures(is_idle=True) == CacheFigures(used_blocks=[0], cached_blocks=[0])
    clock.now += 2
    assert count.figures(is_idle=False) is not None
