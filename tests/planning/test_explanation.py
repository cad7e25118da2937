"""Every expression is arithmetic that gives the value beside it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.planning.explanation import explain
from octavo.planning.forecast import forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine
from tests.planning.build import GIB, planned, subject


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("Gemma-3-27b", {"max_model_len": 131072}),
        ("Gemma-3-27b", {"max_model_len": 700}),
        ("Gemma-2-9b", {"kv_cache_dtype": "int8"}),
        ("Llama-3.1-8B", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        ("DeepSeek-V3", {"kv_cache_dtype": "fp8"}),
        ("Qwen3-Next-80B-A3B", {}),
        ("Llama-4-Scout", {}),
    ],
)
def test_expressions_come_to_their_values(model: str, more: dict[str, Any]) -> None:
    asked = planned(model, 24 * GIB, **{"max_model_len": 8192} | more)
    steps = explain(asked)
    for step in steps:
        assert eval(step.expression) == step.value, step
    values = {step.name: step.value for step in steps}
    figures = asked.plan.figures
    assert values["requests at once"] == figures.max_concurrency
    assert values["capacity in tokens"] == figures.capacity_tokens
    assert values["reserved bytes"] == figures.ranks[asked.heaviest_rank].one_request_bytes


def test_the_budget_is_explained_for_every_rank_that_differs() -> None:
    machine = Machine(memory_bytes=(80 * GIB, 40 * GIB), weight_bytes=16 * 10**9, runtime_bytes=GIB)
    asked = forecast(subject("Llama-3.1-8B"), Inquiry(machine=machine, pipeline_parallel_size=2, max_model_len=512))
    steps = {step.name: step for step in explain(asked)}
    for rank in (0, 1):
        step = steps[f"KV cache bytes, rank {rank}"]
        assert eval(step.expression) == step.value == asked.budgets[rank].kv_bytes
