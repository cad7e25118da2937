"""From configs to figures, with the numbers that are known from elsewhere."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError, LayoutError
from octavo.kv.planner import plan_kv_cache
from octavo.planning.devices import known_devices
from octavo.planning.forecast import forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine
from tests.formats.published import CONFIGS
from tests.planning.build import GIB, planned, subject

GOLDEN = [
    ("SmolLM2-135M", 1, 8192, 2048, 2912, 46592, 5.6875),
    ("Llama-3.1-8B", 8, 32768, 2048, 4096, 65536, 2.0),
    ("Gemma-3-270m", 1, 32768, 2048, 21845, 250899, 7.6569),
    ("Gemma-3-270m", 1, 32768, 16384, 21845, 97615, 2.9790),
    ("Gemma-3-1b", 1, 32768, 2048, 16384, 178125, 5.4360),
    ("Gemma-3-4b", 8, 32768, 2048, 26214, 267928, 8.1765),
    ("Gemma-3-27b", 24, 32768, 2048, 19660, 200941, 6.1323),
    ("Gemma-2-9b", 8, 8192, 2048, 3120, 28493, 3.4783),
    ("Gemma-2-9b", 8, 8192, 16384, 3120, 24935, 3.0439),
    ("gpt-oss-20b", 8, 131072, 2048, 21845, 343770, 2.6228),
    ("Mistral-7B-v0.1", 4, 32768, 2048, 2048, 174308, 5.3195),
    ("Mistral-7B-v0.1", 4, 32768, 16384, 2048, 52387, 1.5988),
]


@pytest.mark.parametrize(("model", "gib", "length", "in_flight", "blocks", "tokens", "times"), GOLDEN)
def test_the_reference_engines_figures_come_out_of_a_config(
    model: str, gib: int, length: int, in_flight: int, blocks: int, tokens: int, times: float
) -> None:
    asked = planned(model, gib * GIB, max_model_len=length, max_num_batched_tokens=in_flight)
    assert asked.reference.plan is not None
    figures = asked.reference.plan.figures
    assert (figures.num_blocks, figures.capacity_tokens) == (blocks, tokens)
    assert figures.max_concurrency == pytest.approx(times, abs=1e-4)
    assert asked.reference.in_flight_tokens == in_flight
    own = asked.plan.figures
    assert own.usable_blocks / sum(own.blocks_per_request) >= (figures.num_blocks - 1) / sum(figures.blocks_per_request)


def test_the_forecast_is_the_plan_that_the_engine_makes() -> None:
    asked = planned("Gemma-3-27b", 24 * GIB, max_model_len=32768)
    made = plan_kv_cache(asked.specs_by_rank, [24 * GIB], asked.options, asked.shared_by_rank)
    assert made == asked.plan


def test_heads_are_replicated_where_there_are_more_ranks_than_heads() -> None:
    four, eight, sixteen = (
        planned("Llama-3.1-8B", GIB, tensor_parallel_size=n, max_model_len=2048) for n in (4, 8, 16)
    )
    assert eight.plan.figures.capacity_tokens == pytest.approx(2 * four.plan.figures.capacity_tokens, rel=0.01)
    assert sixteen.plan.figures.capacity_tokens == eight.plan.figures.capacity_tokens
    assert len(sixteen.plan.configs) == 16


def test_uneven_stages_have_budgets_of_their_own() -> None:
    """Known: 16 and 32 layers, 3.18 and 16 GiB, hold 6,512 blocks as the reference counts."""
    config = {**CONFIGS["Qwen3-30B-A3B"], "max_position_embeddings": 262144}
    asked = planned(
        config,
        (int(3.18 * GIB), 16 * GIB),
        pipeline_parallel_size=2,
        pipeline_layers=(16, 32),
        max_model_len=100000,
    )
    assert asked.reference.plan is not None
    assert asked.reference.plan.figures.num_blocks == 6512
    assert [len(specs) for specs in asked.specs_by_rank] == [16, 32]
    assert asked.heaviest_rank == 1


def test_budgets_are_given_for_all_for_stages_or_for_ranks() -> None:
    asked = planned("Llama-3.1-8B", (GIB, 2 * GIB), pipeline_parallel_size=2, tensor_parallel_size=2, max_model_len=512)
    assert [budget.kv_bytes for budget in asked.budgets] == [GIB, GIB, 2 * GIB, 2 * GIB]
    with pytest.raises(ConfigError, match="--kv-memory has 3 sizes"):
        planned("Llama-3.1-8B", (1, 2, 3), pipeline_parallel_size=2, tensor_parallel_size=2)


def test_a_machine_leaves_what_weights_and_runtime_do_not_take() -> None:
    machine = Machine(device=known_devices()["h200"], num_devices=8, weight_bytes=141 * 10**9, runtime_bytes=3 * GIB)
    asked = forecast(subject("Llama-3.1-70B"), Inquiry(machine=machine))
    assert len(asked.budgets) == asked.tensor_parallel_size == 8
    for budget in asked.budgets:
        assert budget.usable_bytes == int(known_devices()["h200"].memory_bytes * 0.92)
        assert budget.kv_bytes == budget.usable_bytes - budget.weight_bytes - 3 * GIB
    assert sum(budget.weight_bytes or 0 for budget in asked.budgets) == pytest.approx(141e9, rel=0.01)


def test_without_a_machine_the_least_for_one_request_is_planned() -> None:
    asked = planned("Gemma-3-27b", 0, max_model_len=4096)
    assert not asked.is_budget_given
    assert asked.fits
    assert asked.plan.figures.usable_blocks == sum(asked.plan.figures.blocks_per_request)
    with pytest.raises(ConfigError, match="--gpu, --memory or --kv-memory"):
        planned("Gemma-3-27b", 0, max_model_len=-1)


def test_the_longest_that_fits_is_found() -> None:
    asked = planned("Llama-3.1-8B", 2 * GIB, max_model_len=-1)
    assert asked.plan.figures.max_model_len == 2 * GIB // (2 * 8 * 128 * 2 * 32) - 16


def test_a_length_beyond_the_model_is_planned_and_told() -> None:
    asked = planned("Qwen3-8B", 64 * GIB, max_model_len=200_000)
    assert any("200,000 tokens are more than" in note for note in asked.notes)


def test_what_cannot_run_here_yet_is_told() -> None:
    assert any(
        "cannot run it yet" in note for note in planned("Llama-3.1-8B", kv_cache_dtype="fp8", max_model_len=64).notes
    )
    assert planned("Llama-3.1-8B", max_model_len=64).notes == ()


def test_a_checkpoint_in_float32_is_planned_in_two_bytes_and_that_is_told() -> None:
    asked = planned({**CONFIGS["Llama-3.1-8B"], "torch_dtype": "float32"}, max_model_len=64)
    assert asked.compute_dtype == "bfloat16"
    assert any("--dtype" in note for note in asked.notes)


def test_off_the_hybrid_manager_the_reference_plans_as_it_does() -> None:
    asked = planned("Gemma-2-9b", 8 * GIB, max_model_len=8192, hybrid=False)
    assert asked.reference.plan is not None
    assert asked.reference.plan.figures.capacity_tokens == 24960
    with pytest.raises(LayoutError):
        planned("Jamba-v0.1", 8 * GIB, hybrid=False)


def test_costs_at_any_length_are_those_of_the_groups() -> None:
    asked = planned("Gemma-3-270m", GIB, max_model_len=32768)
    assert asked.blocks_of(32768) == sum(asked.plan.figures.blocks_per_request)
    assert asked.concurrency(32768) == asked.plan.figures.max_concurrency
    assert asked.concurrency(1024) > asked.concurrency(32768)


def test_where_the_references_groups_gain_nothing_that_is_told() -> None:
    """Known: Gemma 2 9B in 8 GiB with 16,384 tokens in flight, 24,960 tokens without groups and 24,935 with them."""
    (note,) = planned("Gemma-2-9b", 8 * GIB, max_model_len=8192, max_num_batched_tokens=16384).notes
    assert "24,960" in note
    assert "24,935" in note
    assert planned("Gemma-2-9b", 8 * GIB, max_model_len=8192, max_num_batched_tokens=2048).notes == ()
