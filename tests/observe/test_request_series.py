"""What a request's own series hold; tests/observe/test_metrics.py follows whole requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo.observe.request_series import RequestSeries, RequestTimes
from octavo.request import FinishReason


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})


def test_a_sequence_that_never_got_into_a_core_is_counted_and_nothing_else() -> None:
    registry = CollectorRegistry()
    series = RequestSeries(registry, "m")
    series.start(0)
    series.ended(RequestTimes(1.0, 10, None), FinishReason.ERROR)
    assert _value(registry, "vllm:request_success_total", finished_reason="error") == 1
    for name in ("e2e_request_latency_seconds", "request_prompt_tokens", "request_params_max_tokens"):
        assert _value(registry, f"vllm:{name}_count") == 0


def test_a_sequence_is_admitted_once_whatever_happens_later() -> None:
    registry = CollectorRegistry()
    series, times = RequestSeries(registry, "m"), RequestTimes(5.0, 10, 3)
    series.admitted(times, 0, step_began=4.0)
    series.admitted(times, 1, step_began=9.0)
    assert (times.engine, times.admitted) == (0, 5.0)
    assert _value(registry, "vllm:request_queue_time_seconds_count") == 1


def test_one_token_has_no_time_per_token() -> None:
    registry = CollectorRegistry()
    series, times = RequestSeries(registry, "m"), RequestTimes(5.0, 10, 3)
    series.start(0)
    series.admitted(times, 0, step_began=6.0)
    series.tokens_came(times, 1, 8.0)
    series.ended(times, FinishReason.STOP)
    assert _value(registry, "vllm:request_time_per_output_token_seconds_count") == 0
    assert _value(registry, "vllm:request_inference_time_seconds_sum") == 2.0
    assert _value(registry, "vllm:request_params_max_tokens_sum") == 3
