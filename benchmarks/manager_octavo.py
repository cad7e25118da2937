"""Octavo's `KVCacheManager` alone, its scheduler's whole step without a model, and a rank's bookkeeping around it."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.manager_cases import (
    BLOCK_TOKENS,
    DECODE_CONTEXT,
    DECODE_STEPS,
    KINDS,
    WINDOW,
    batches,
    cases_of,
    mean_of_steps,
    prompts,
    run_driver,
)
from octavo import __version__
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, LayerSpec, SlidingWindowSpec
from octavo.messages import CachedRequests, ModelRunnerOutput, NewRequestData, SchedulerOutput
from octavo.request import Request, SamplingParams
from octavo.sched.scheduler import Scheduler
from octavo.worker.block_table import BlockTable
from octavo.worker.input_batch import InputBatch

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
    limits = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=num_requests * (DECODE_CONTEXT + 64))
    scheduler = Scheduler(limits, driver.build(kind, 131_072), max_model_len=_MAX_LENGTH)
    for index, text in enumerate(_decoding_prompts(num_requests)):
        scheduler.add_request(driver.make(f"s{index}", text))
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
    found = {"schedule": mean_of_steps(schedule), "update": mean_of_steps(update)}
    return {**found, "total": sum(found.values())}


def measure_rank(driver: OctavoDriver, kind: str, num_requests: int) -> dict[str, float]:
    """CPU seconds of a rank's bookkeeping around one decoding step: the batch brought up to date, the step flattened,
    slots of the new tokens, sampled tokens appended."""
    num_groups = 2 if kind == "hybrid" else 1
    tables = [BlockTable(num_rows=num_requests, block_size=BLOCK_TOKENS, max_blocks=8192) for _ in range(num_groups)]
    batch = InputBatch(num_rows=num_requests, tables=tables, seed=0)
    requests = [driver.make(f"b{index}", text) for index, text in enumerate(_decoding_prompts(num_requests))]
    # Which block is which does not matter here.
    blocks: list[list[int]] = [[1] for _ in range(num_groups)]
    step = SchedulerOutput(
        step=0,
        num_scheduled_tokens={request.request_id: request.num_tokens for request in requests},
        new_requests=[
            NewRequestData.of(
                request,
                num_computed_tokens=0,
                block_ids=tuple(ids * -(-request.num_tokens // BLOCK_TOKENS) for ids in blocks),
            )
            for request in requests
        ],
    )
    phases: dict[str, list[float]] = {"update": [], "flatten": [], "slots": [], "append": []}
    sampled = np.zeros(num_requests, dtype=np.int64)
    for number in range(DECODE_STEPS + 1):
        times = [time.thread_time()]
        batch.update(step)
        times.append(time.thread_time())
        inputs = batch.flatten(step)
        times.append(time.thread_time())
        for table in tables:
            table.slots(inputs.token_rows, inputs.positions)
        times.append(time.thread_time())
        batch.append_tokens(inputs.rows[inputs.samplers], sampled)
        times.append(time.thread_time())
        if number:
            for values, (before, after) in zip(phases.values(), itertools.pairwise(times), strict=True):
                values.append(after - before)
        counts = [request.num_tokens + number for request in requests]
        names = [request.request_id for request in requests]
        news = {name: tuple(blocks) for name, n in zip(names, counts, strict=True) if n % BLOCK_TOKENS == 0}
        step = SchedulerOutput(
            step=number + 1,
            num_scheduled_tokens=dict.fromkeys(names, 1),
            cached_requests=CachedRequests(request_ids=names, num_computed_tokens=counts, new_block_ids=news),
        )
    found = {name: mean_of_steps(values) for name, values in phases.items()}
    return {**found, "total": sum(found.values())}


def _decoding_prompts(count: int) -> list[list[int]]:
    """Contexts differ, so that in each step a few requests need a block and most do not."""
    return [[*prompts(1, DECODE_CONTEXT + index % 64)[0][:-1], index] for index in range(count)]


if __name__ == "__main__":
    DRIVER = OctavoDriver()

    def by_batch(measure: Callable[..., Any], *, is_quick: bool) -> list[dict[str, Any]]:
        return cases_of(measure, DRIVER, [(kind, batch) for kind in KINDS for batch in batches(is_quick=is_quick)])

    run_driver(DRIVER, {"scheduler": partial(by_batch, measure_scheduler), "rank": partial(by_batch, measure_rank)})
