"""A plan in a few lines that a person can check."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from octavo.cli.plan_view import capacity_line, plan_view
from octavo.cli.plan_words import layer_numbers
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, SlidingWindowSpec
from tests.engine.fake_plan import FAKE_PLAN


def _text(plan: KVCachePlan, device: str = "CPU") -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(plan_view(plan, model_name="toy", device=device), soft_wrap=True)
    return out.getvalue()


def test_the_view_shows_groups_tensors_blocks_and_what_they_hold() -> None:
    text = _text(FAKE_PLAN)
    assert "KV cache plan of toy: 100 blocks of 16 tokens, 2.00 KiB each: 200.0 KiB" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "2:", "0", "2", "window", "32"] in [row[:6] for row in rows]
    assert ["1", "2:", "1", "3", "full"] in [row[:5] for row in rows]
    assert "2 tensors of 100.0 KiB, each shared by up to 2 layers; 99 blocks to hand out, 1 null block" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith("  "))


def test_the_capacity_line_is_the_one_that_log_scrapers_know() -> None:
    figures = FAKE_PLAN.figures
    assert capacity_line(FAKE_PLAN, device="CPU") == (
        f"CPU KV cache size: {figures.capacity_tokens:,} tokens, "
        f"Maximum concurrency for 1,000 tokens per request: {figures.max_concurrency:.2f}x"
    )
    assert capacity_line(FAKE_PLAN, device="CPU") in _text(FAKE_PLAN)


def test_all_ranks_and_sharing_layers_are_named() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32")
    plan = plan_kv_cache(
        [{"layers.0": spec}, {"layers.0": spec}],
        [2**20, 2**20],
        PlanOptions(max_model_len=64),
        shared_layers_by_rank=[{"layers.1": "layers.0"}] * 2,
    )
    text = _text(plan)
    assert "on each of 2 ranks" in text
    assert "1 layers keep no cache of their own" in text


def test_a_single_window_group_needs_no_word_about_sharing() -> None:
    spec = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32", window=2048)
    text = _text(plan_kv_cache([{"layers.0": spec}], [2**20], PlanOptions(max_model_len=64)))
    assert "window 2,048" in text
    assert "shared by" not in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layers.0", "layers.1", "layers.2"], "0-2"),
        (["layers.0", "layers.6", "layers.12"], "0 6 12"),
        (["layers.0", "layers.1", "layers.5"], "0-1 5"),
        ([f"layers.{6 * index}" for index in range(9)], "0 6 ... 48"),
        (["encoder", "layers.1"], "encoder 1"),
    ],
)
def test_layers_are_listed_by_number(names: list[str], expected: str) -> None:
    assert layer_numbers(names) == expected
