"""Numbers that the metrics show for a known course of events."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from octavo.messages import CacheFigures, EngineCoreOutput, EngineCoreOutputs, SchedulerStats
from octavo.observe.metrics import EngineMetrics, ThroughputMeter
from octavo.request import FinishReason
from tests.engine.fake_plan import FAKE_PLAN

STATS = SchedulerStats(
    num_running=2,
    num_waiting=1,
    num_blocks=100,
    num_free_blocks=60,
    num_cached_blocks=9,
    num_used_blocks=30,
    num_preemptions=0,
    prefix_query_tokens=100,
    prefix_hit_tokens=25,
)


def _step(outputs: list[EngineCoreOutput], **more: Any) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=outputs, stats=more.pop("stats", STATS), **more)


def _token(name: str, reason: FinishReason | None = None, cached: int = 0) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=name, new_token_ids=[5], finish_reason=reason, num_cached_tokens=cached)


@pytest.fixture
def metrics() -> EngineMetrics:
    metrics = EngineMetrics("m")
    metrics.core_started(FAKE_PLAN)
    return metrics


def _value(metrics: EngineMetrics, name: str, **labels: str) -> float:
    """Of a series of core 0, unless `labels` say otherwise, or of one that is not told apart by core."""
    get = metrics.registry.get_sample_value
    value = get(name, {"model_name": "m", "engine": "0", **labels})
    value = get(name, {"model_name": "m", **labels}) if value is None else value
    assert value is not None, name
    return value


def test_the_times_of_a_request(metrics: EngineMetrics) -> None:
    metrics.sequence_arrived("a", 10, now=100.0, max_tokens=3)
    metrics.step_ended(_step([], admitted=["a"], step_s=0.5, num_prompt_tokens=6), now=102.5)
    metrics.step_ended(_step([_token("a", cached=4)], num_prompt_tokens=4), now=103.0)
    metrics.step_ended(_step([_token("a")]), now=103.25)
    metrics.step_ended(_step([_token("a", FinishReason.LENGTH)]), now=104.0)
    metrics.request_finished({"a": FinishReason.LENGTH})
    for name, value in (
        ("vllm:request_queue_time_seconds_sum", 2.0),
        ("vllm:request_prefill_time_seconds_sum", 1.0),
        ("vllm:time_to_first_token_seconds_sum", 3.0),
        ("vllm:request_decode_time_seconds_sum", 1.0),
        ("vllm:inter_token_latency_seconds_sum", 1.0),
        ("vllm:inter_token_latency_seconds_count", 2.0),
        ("vllm:request_time_per_output_token_seconds_sum", 0.5),
        ("vllm:e2e_request_latency_seconds_sum", 4.0),
        ("vllm:request_prompt_tokens_sum", 10.0),
        ("vllm:request_generation_tokens_sum", 3.0),
        ("vllm:request_max_num_generation_tokens_sum", 3.0),
        ("vllm:request_params_max_tokens_sum", 3.0),
        ("vllm:request_params_n_sum", 1.0),
        ("vllm:request_inference_time_seconds_sum", 2.0),
        ("vllm:time_per_output_token_seconds_sum", 1.0),
        ("vllm:prompt_tokens_total", 10.0),
        ("vllm:prompt_tokens_cached_total", 4.0),
        ("vllm:generation_tokens_total", 3.0),
        ("vllm:iteration_tokens_total_count", 4.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 6.0),
    ):
        assert _value(metrics, name) == value, name


def test_prompt_tokens_are_those_of_prompts_whatever_the_cache_held(metrics: EngineMetrics) -> None:
    """A dashboard divides the cached ones by them; those computed again after a preemption are no prompt's."""
    metrics.sequence_arrived("a", 100, now=0.0)
    metrics.step_ended(_step([], admitted=["a"], num_prompt_tokens=10), now=1.0)
    metrics.step_ended(_step([], num_prompt_tokens=10), now=2.0)
    assert _value(metrics, "vllm:prompt_tokens_total") == 0
    metrics.step_ended(_step([_token("a", cached=90)], num_prompt_tokens=10), now=3.0)
    metrics.step_ended(_step([_token("a")], num_prompt_tokens=101), now=4.0)
    assert _value(metrics, "vllm:prompt_tokens_total") == 100
    assert _value(metrics, "vllm:prompt_tokens_cached_total") == 90
    assert _value(metrics, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 90
    assert _value(metrics, "vllm:prompt_tokens_by_source_total", source="local_compute") == 10
    assert _value(metrics, "vllm:iteration_tokens_total_sum") == 133


def test_how_requests_end(metrics: EngineMetrics) -> None:
    for name in ("a.0", "a.1", "b", "c"):
        metrics.sequence_arrived(name, 10, now=0.0)
    metrics.step_ended(_step([_token("a.0"), _token("a.1"), _token("b")], admitted=["a.0", "a.1", "b"]), now=1.0)
    metrics.step_ended(_step([_token("a.1", FinishReason.LENGTH)]), now=3.0)
    assert _value(metrics, "octavo:kv_cache_tokens") == 11 + 11, "what has ended holds nothing"
    metrics.request_finished({"a.0": FinishReason.STOP, "a.1": FinishReason.LENGTH})
    metrics.request_failed(["b"], FinishReason.ABORT)
    metrics.request_failed(["c", "never came"], FinishReason.ERROR)
    ended = {reason: _value(metrics, "vllm:request_success_total", finished_reason=reason) for reason in FinishReason}
    assert ended == {"stop": 1, "length": 1, "abort": 1, "error": 1}
    assert _value(metrics, "vllm:e2e_request_latency_seconds_sum") == 1.0 + 3.0
    assert _value(metrics, "vllm:request_params_n_sum") == 2
    assert _value(metrics, "vllm:request_max_num_generation_tokens_sum") == 2
    assert _value(metrics, "octavo:requests_given_up_total") == _value(metrics, "octavo:request_failures_total") == 1
    metrics.step_ended(_step([]), now=4.0)
    assert _value(metrics, "octavo:kv_cache_tokens") == 0


def test_where_the_cache_stands(metrics: EngineMetrics) -> None:
    capacity = FAKE_PLAN.figures.capacity_tokens
    metrics.sequence_arrived("a", 10, now=0.0)
    metrics.sequence_arrived("waits", 50, now=0.0)
    metrics.step_ended(_step([_token("a")], admitted=["a"]), now=1.0)
    assert _value(metrics, "vllm:kv_cache_usage_perc") == pytest.approx(30 / 99)
    assert _value(metrics, "octavo:kv_cache_tokens") == 11
    assert _value(metrics, "octavo:kv_cache_token_occupancy") == pytest.approx(11 / capacity)
    assert _value(metrics, "octavo:kv_cache_free_tokens") == pytest.approx(capacity * 69 / 99)
    assert _value(metrics, "vllm:num_requests_running") == 2
    assert _value(metrics, "vllm:num_requests_waiting") == 1
    metrics.request_failed(["a"], FinishReason.ABORT)
    metrics.step_ended(_step([]), now=2.0)
    assert _value(metrics, "octavo:kv_cache_tokens") == 0


def test_counters_go_on_where_a_new_core_counts_from_nothing(metrics: EngineMetrics) -> None:
    metrics.step_ended(_step([], stats=msgspec.structs.replace(STATS, num_preemptions=3)), now=1.0)
    stats = msgspec.structs.replace(STATS, num_preemptions=5, num_prompt_preemptions=1)
    metrics.step_ended(_step([], stats=stats), now=2.0)
    assert _value(metrics, "octavo:preemptions_by_cause_total", cause="output") == 4
    assert _value(metrics, "octavo:preemptions_by_cause_total", cause="prompt") == 1
    metrics.core_started(FAKE_PLAN)
    metrics.step_ended(_step([], stats=msgspec.structs.replace(STATS, num_preemptions=1)), now=3.0)
    assert _value(metrics, "vllm:num_preemptions_total") == 6
    assert _value(metrics, "vllm:prefix_cache_hits_total") == 50
    assert _value(metrics, "octavo:engine_core_starts_total") == 2


def test_the_line_of_every_ten_seconds() -> None:
    meter = ThroughputMeter("CPU")
    assert meter.line(meter._since + 10) is None
    meter.step_ended(_step([_token("a"), _token("b")], num_prompt_tokens=50))
    assert meter.line(meter._since + 10) == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 0.2 tokens/s, Running: 2 reqs, "
        "Waiting: 1 reqs, CPU KV cache usage: 30.3%, Prefix cache hit rate: 25.0%"
    )
    assert meter.line(meter._since + 10) is None


def test_cores_are_counted_and_shown_apart(metrics: EngineMetrics) -> None:
    metrics.core_started(FAKE_PLAN, engine=1)
    metrics.sequence_arrived("a", 10, now=0.0)
    metrics.sequence_arrived("b", 20, now=0.0)
    metrics.step_ended(_step([_token("a", cached=8)], admitted=["a"], num_prompt_tokens=2), now=1.0)
    other = msgspec.structs.replace(STATS, num_running=7, num_preemptions=4, num_used_blocks=90)
    metrics.step_ended(_step([_token("b")], admitted=["b"], num_prompt_tokens=20, stats=other, engine=1), now=1.0)
    for name, here, there in (
        ("vllm:num_requests_running", 2, 7),
        ("vllm:num_preemptions_total", 0, 4),
        ("vllm:prompt_tokens_total", 10, 20),
        ("vllm:time_to_first_token_seconds_count", 1, 1),
        ("vllm:iteration_tokens_total_sum", 3, 21),
        ("vllm:prompt_tokens_cached_total", 8, 0),
        ("vllm:prefix_cache_hits_total", 25, 25),
        ("octavo:kv_cache_used_blocks", 30, 90),
        ("octavo:kv_cache_tokens", 11, 21),
        ("octavo:engine_core_starts_total", 1, 1),
    ):
        assert (_value(metrics, name), _value(metrics, name, engine="1")) == (here, there), name
    metrics.core_started(FAKE_PLAN, engine=1)
    assert _value(metrics, "vllm:num_requests_running", engine="1") == 0
    assert _value(metrics, "vllm:num_requests_running") == 2
    metrics.step_ended(_step([], stats=msgspec.structs.replace(STATS, num_preemptions=1), engine=1), now=2.0)
    assert _value(metrics, "vllm:num_preemptions_total", engine="1") == 5


def test_the_line_is_of_all_cores() -> None:
    meter = ThroughputMeter("CPU")
    meter.step_ended(_step([_token("a")], num_prompt_tokens=50))
    meter.step_ended(_step([_token("b")], num_prompt_tokens=30, engine=1))
    meter.step_ended(_step([_token("b")], engine=1))
    assert meter.line(meter._since + 10) == (
        "Avg prompt throughput: 8.0 tokens/s, Avg generation throughput: 0.3 tokens/s, Running: 4 reqs, "
        "Waiting: 2 reqs, CPU KV cache usage: 30.3%, Prefix cache hit rate: 25.0%"
    )


def test_why_sequences_wait_and_how_short_a_prefix_is_found(metrics: EngineMetrics) -> None:
    assert _value(metrics, "octavo:min_reusable_prefix_tokens") == FAKE_PLAN.figures.scheduler_block_size
    assert _value(metrics, "vllm:num_requests_waiting_by_reason", reason="capacity") == 0
    metrics.step_ended(_step([], stats=msgspec.structs.replace(STATS, num_waiting=5, num_parked=2)), now=1.0)
    assert _value(metrics, "vllm:num_requests_waiting") == 5
    assert _value(metrics, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert _value(metrics, "vllm:num_requests_waiting_by_reason", reason="deferred") == 2


def test_the_lives_of_blocks_and_what_each_group_has(metrics: EngineMetrics) -> None:
    kind = FAKE_PLAN.configs[0].groups[0].spec.kind
    labels = {"group": "0", "kind": kind}
    assert _value(metrics, "octavo:kv_cache_group_used_blocks", **labels) == 0
    cache = CacheFigures(
        used_blocks=[11], cached_blocks=[3], lifetimes_s=[5.0, 7.0], idle_s=[1.0, 2.0], reuse_gaps_s=[0.5]
    )
    metrics.step_ended(_step([], cache=cache), now=1.0)
    metrics.step_ended(_step([]), now=2.0)
    for name, value in (
        ("vllm:kv_block_lifetime_seconds_sum", 12.0),
        ("vllm:kv_block_lifetime_seconds_count", 2.0),
        ("vllm:kv_block_idle_before_evict_seconds_sum", 3.0),
        ("vllm:kv_block_reuse_gap_seconds_sum", 0.5),
    ):
        assert _value(metrics, name) == value, name
    assert _value(metrics, "octavo:kv_cache_group_used_blocks", **labels) == 11
    assert _value(metrics, "octavo:kv_cache_group_cached_blocks", **labels) == 3
    assert _value(metrics, "octavo:kv_cache_group_usage_perc", **labels) == pytest.approx(
        11 / FAKE_PLAN.figures.usable_blocks
    )


COUNTERS = """
prompt_tokens generation_tokens num_preemptions request_success prefix_cache_queries prefix_cache_hits
prompt_tokens_cached prompt_tokens_by_source
"""
GAUGES = (
    "num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc cache_config_info "
    "gpu_cache_usage_perc engine_sleep_state"
)
HISTOGRAMS = """
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_inference_time_seconds request_max_num_generation_tokens request_params_max_tokens request_params_n
time_per_output_token_seconds
iteration_tokens_total request_prompt_tokens request_generation_tokens request_prefill_kv_computed_tokens
kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds
"""


def test_every_name_that_dashboards_ask_for_is_there_from_the_start(metrics: EngineMetrics) -> None:
    names = {re.split(r"[{ ]", line)[0] for line in metrics.exposition().decode().splitlines() if line[0] != "#"}
    wanted = [f"vllm:{name}_total" for name in COUNTERS.split()]
    wanted += [f"vllm:{name}" for name in GAUGES.split()]
    wanted += [f"vllm:{name}_{end}" for name in HISTOGRAMS.split() for end in ("bucket", "sum", "count")]
    wanted += ["process_resident_memory_bytes", "process_cpu_seconds_total", "python_info"]
    wanted += ["vllm:admission_rejections_total"]
    assert [name for name in wanted if name not in names] == []
    assert _value(metrics, "vllm:engine_sleep_state", sleep_state="awake") == 1


def test_a_dashboard_can_filter_every_series_of_vllms_by_model_and_engine(metrics: EngineMetrics) -> None:
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("vllm:") and "admission" not in line:
            assert 'model_name="m"' in line, line
            assert 'engine="0"' in line, line
