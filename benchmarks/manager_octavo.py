"""Octavo's `KVCacheManager` alone, and its scheduler's whole step without a model."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from benchmarks.peers.manager_cases import BLOCK_TOKENS, DECODE_CONTEXT, DECODE_STEPS, WINDOW, prompts, run_driver
from octavo import __version__
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, LayerSpec, SlidingWindowSpec
from octavo.messages import ModelRunnerOutput
from octavo.request import Request, SamplingParams
from octavo.sched.scheduler import Scheduler

_SHAPE: dict[str, Any] = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
_MAX_LENGTH = 131_072
_MAX_OUTPUT = 1000


class OctavoDriver:
    """See `Driver`."""

    name = "octavo"
    version = __version__

    def __init__(self) -> None:
        self._sampling = SamplingParams(max_tokens=_MAX_OUTPUT)

    def build(self, kind: str, num_blocks: int) -> KVCacheManager:
        specs: list[LayerSpec] = [FullAttentionSpec(**_SHAPE)]
        if kind == "hybrid":
            specs.append(SlidingWindowSpec(**_SHAPE, window=WINDOW))
        groups = tuple(KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs))
        config = KVCacheConfig(
            num_blocks=num_blocks, groups=groups, tensors=(), max_model_len=_MAX_LENGTH, max_chunk_tokens=_MAX_LENGTH
        )
        return KVCacheManager(config, enable_caching=True)

    def make(self, request_id: str, token_ids: list[int]) -> Request:
        return Request(request_id, token_ids, self._sampling, max_output_tokens=_MAX_OUTPUT)

    def look_up(self, manager: KVCacheManager, request: Request) -> Any:
        return manager.get_computed_blocks(request)

    def num_hit_tokens(self, found: Any) -> int:
        return int(found.num_tokens)

    def allocate_prompt(self, manager: KVCacheManager, request: Request, found: Any) -> bool:
        return manager.allocate_slots(request, request.num_tokens - found.num_tokens, found) is not None

    def free(self, manager: KVCacheManager, request: Request) -> None:
        manager.free(request)

    def settle(self, request: Request) -> None:
        request.num_computed_tokens = request.num_tokens

    def append(self, request: Request, token_id: int) -> None:
        request.append_token(token_id)

    def allocate_token(self, manager: KVCacheManager, request: Request) -> bool:
        return manager.allocate_slots(request, 1) is not None


def measure_scheduler(driver: OctavoDriver, kind: str, num_requests: int) -> dict[str, float]:
    """CPU seconds of one decoding step of the scheduler: `schedule`, and `update_from_output` of what it asked for."""
    limits = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=num_requests * (DECODE_CONTEXT + 1))
    scheduler = Scheduler(limits, driver.build(kind, 131_072), max_model_len=_MAX_LENGTH)
    for index in range(num_requests):
        scheduler.add_request(driver.make(f"s{index}", [*prompts(1, DECODE_CONTEXT)[0][:-1], index]))
    schedule, update = [], []
    gc.collect()
    gc.freeze()
    # The first step computes the prompts.
    for number in range(DECODE_STEPS + 1):
        started = time.thread_time()
        step = scheduler.schedule()
        planned = time.thread_time()
        output = ModelRunnerOutput(sampled=dict.fromkeys(step.num_scheduled_tokens, 7))
        ran = time.thread_time()
        scheduler.update_from_output(step, output)
        if number:
            schedule.append(planned - started)
            update.append(time.thread_time() - ran)
    gc.unfreeze()
    found = {"schedule": statistics.median(schedule), "update": statistics.median(update)}
    return {**found, "total": sum(found.values())}


def scheduler_cases(driver: OctavoDriver, *, is_quick: bool) -> dict[str, Any]:
    """The scheduler by batch."""
    batches = (16, 256) if is_quick else (1, 16, 64, 256, 1024)
    cases = [(kind, batch) for kind in ("full", "hybrid") for batch in batches]
    return {"scheduler": [{"case": list(case), **measure_scheduler(driver, *case)} for case in cases]}


if __name__ == "__main__":
    DRIVER = OctavoDriver()
    run_driver(DRIVER, lambda is_quick: scheduler_cases(DRIVER, is_quick=is_quick))
