"""The plan of the model named `fake`. Needs no torch, so that a process with it starts at once."""

from __future__ import annotations

from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, SlidingWindowSpec

NUM_BLOCKS = 100
_FULL = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32")
_WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32", window=32)
_PAGE_BYTES = 16 * 2 * 8 * 4
FAKE_PLAN = plan_kv_cache(
    [{"layers.0": _WINDOW, "layers.1": _FULL, "layers.2": _WINDOW, "layers.3": _FULL}],
    [NUM_BLOCKS * 2 * _PAGE_BYTES],
    PlanOptions(max_model_len=1000, max_num_batched_tokens=64),
)
