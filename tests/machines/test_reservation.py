"""What the planner reserves for one request is what the cache manager needs for it: not a block less, seldom more."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.errors import CacheTooSmallError, NoCacheMemoryError
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import LayerSpec
from octavo.request import Request, SamplingParams
from tests.strategies import models


def request_of(num_tokens: int) -> Request:
    return Request("r", list(range(num_tokens)), SamplingParams(), max_output_tokens=1)


@given(
    models(kinds=("full", "sliding_window", "chunked_local", "mla"), max_layers=8, max_stages=1),
    st.integers(1, 400),
    st.integers(1, 90),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_smallest_budget_runs_one_request_to_its_end(
    ranks: list[dict[str, LayerSpec]], length: int, chunk: int, caching: bool, dice: random.Random
) -> None:
    """In steps of any size up to the chunk, from any place on."""
    options = PlanOptions(max_model_len=length, max_num_batched_tokens=chunk)
    try:
        plan_kv_cache(ranks, [0], options)
        raise AssertionError("nothing fits into no memory")
    except (NoCacheMemoryError, CacheTooSmallError) as error:
        smallest = error.numbers["smallest_budget_bytes"]
    config = plan_kv_cache(ranks, [smallest], options).configs[0]
    manager = KVCacheManager(config, enable_caching=caching)
    assert manager.can_ever_fit(length)
    request = request_of(length)
    while request.num_computed_tokens < length:
        left = min(chunk, length - request.num_computed_tokens)
        step = left if dice.random() < 0.5 else dice.randint(1, left)
        assert manager.allocate_slots(request, step) is not None, request.num_computed_tokens
        request.num_computed_tokens += step
        manager.check_integrity()
    manager.free(request)
