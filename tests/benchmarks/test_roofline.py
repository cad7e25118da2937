"""The least time of a workload, against sums done by hand."""

from __future__ import annotations

import pytest

from benchmarks.roofline import Machine, Model, bound, described, seen, step_seconds
from octavo.cli.workload import Workload, WorkloadRequest
from octavo.config import LayerConfig

FULL = LayerConfig(kind="full", num_kv_heads=1, head_size=4)
WINDOW = LayerConfig(kind="sliding_window", num_kv_heads=2, head_size=4, window=3)
MODEL = Model(num_weights=1000, head_weights=400, num_heads=2, layers=(FULL, WINDOW))
READS, MULTIPLIES = Machine(1.0, 1e12), Machine(1e12, 1.0)
"""One byte, or one product or sum, a second; the other for nothing."""


def test_a_window_limits_what_is_seen() -> None:
    assert [seen(FULL, length) for length in (1, 3, 9)] == [1, 3, 9]
    assert [seen(WINDOW, length) for length in (1, 3, 9)] == [1, 3, 3]


def test_bytes_are_weights_once_and_what_layers_still_see() -> None:
    # Token number 9 sees 10 tokens in the full layer (8 numbers each) and 3 in the windowed one (16 each).
    assert step_seconds(MODEL, READS, [(9, 10)], 1) == 2 * (1000 + 10 * 8 + 3 * 16)
    assert step_seconds(MODEL, READS, [(9, 10)] * 2, 2) == 2 * (1000 + 2 * (10 * 8 + 3 * 16))
    assert step_seconds(MODEL, READS, [(0, 5)], 1) == 2 * (1000 + 5 * 8 + 5 * 16)


def test_flops_are_products_with_weights_and_with_tokens_seen() -> None:
    # Tokens 0 to 4 see 1+2+3+4+5 tokens in the full layer and 1+2+3+3+3 in the windowed one.
    assert step_seconds(MODEL, MULTIPLIES, [(0, 5)], 1) == 2 * 600 * 5 + 2 * 400 + 4 * 2 * 4 * (15 + 12)
    assert step_seconds(MODEL, MULTIPLIES, [(9, 10)], 1) == 2 * 600 + 2 * 400 + 4 * 2 * 4 * (10 + 3)
    assert step_seconds(MODEL, MULTIPLIES, [(2, 5)], 0) == 2 * 600 * 3 + 4 * 2 * 4 * (3 + 4 + 5 + 3 * 3)


def test_a_workload_is_prompts_one_by_one_and_then_steps_together() -> None:
    workload = Workload(name="w", requests=[WorkloadRequest([1, 2], 3), WorkloadRequest([3], 2)])
    limit = bound(MODEL, MULTIPLIES, workload)
    prompts = step_seconds(MODEL, MULTIPLIES, [(0, 2)], 1) + step_seconds(MODEL, MULTIPLIES, [(0, 1)], 1)
    steps = step_seconds(MODEL, MULTIPLIES, [(2, 3), (1, 2)], 2) + step_seconds(MODEL, MULTIPLIES, [(3, 4)], 1)
    assert (limit.prefill_s, limit.decode_s, limit.decode_steps) == (prompts, steps, 2)
    assert limit.wall_s == prompts + steps
    assert "decode at most" not in described("m", workload, limit)


def test_a_beginning_that_all_share_is_computed_once() -> None:
    beginning = list(range(100))
    workload = Workload(name="w", requests=[WorkloadRequest([*beginning, 500 + i, 7], 1) for i in range(4)])
    once = step_seconds(MODEL, MULTIPLIES, [(0, 100)], 0)
    own = step_seconds(MODEL, MULTIPLIES, [(100, 102)], 1)
    assert bound(MODEL, MULTIPLIES, workload) == (pytest.approx(once + 4 * own), 0.0, 0)


def test_a_lone_request_has_a_decode_rate() -> None:
    workload = Workload(name="w", requests=[WorkloadRequest([1], 3)])
    assert "decode at most" in described("m", workload, bound(MODEL, READS, workload))
