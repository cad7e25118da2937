"""Each figure is what its definition says."""

from __future__ import annotations

import pytest

from octavo.engine.figures import RunMeter, peak_rss_bytes
from octavo.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats


def _step(
    num_new: int, num_prompt_tokens: int, num_used_blocks: int, num_step_blocks: int | None = None
) -> EngineCoreOutputs:
    stats = SchedulerStats(
        num_running=1,
        num_waiting=2,
        num_blocks=100,
        num_free_blocks=99 - num_used_blocks,
        num_cached_blocks=0,
        num_used_blocks=num_used_blocks,
        num_preemptions=0,
        prefix_query_tokens=0,
        prefix_hit_tokens=0,
    )
    outputs = [EngineCoreOutput(request_id=str(index), new_token_ids=[1]) for index in range(num_new)]
    return EngineCoreOutputs(
        outputs=outputs,
        stats=stats,
        num_prompt_tokens=num_prompt_tokens,
        num_step_blocks=num_used_blocks if num_step_blocks is None else num_step_blocks,
    )


def _output(first_token_s: float, num_tokens: int, num_cached_tokens: int) -> RequestOutput:
    completion = CompletionOutput(index=0, text="", token_ids=[1] * num_tokens, num_cached_tokens=num_cached_tokens)
    metrics = RequestMetrics(first_token_s=first_token_s, finished_s=9.0)
    return RequestOutput(
        request_id="0", prompt=None, prompt_token_ids=[1] * 50, outputs=[completion], finished=True, metrics=metrics
    )


def test_prefill_and_decode_do_not_borrow_time_from_each_other() -> None:
    meter = RunMeter(num_prompt_tokens=100, num_sequences=2)
    meter.observe(_step(0, 60, 4), 2.0)
    meter.observe(_step(2, 20, 9), 2.0)
    meter.observe(_step(2, 0, 7), 0.5)
    meter.observe(_step(2, 0, 0, num_step_blocks=11), 1.5)
    outputs = [_output(1.0, 3, 20), _output(3.0, 3, 0)]
    figures = meter.figures(outputs, load_s=4.0, wall_s=6.0, num_blocks=100)
    assert figures.prefill_tokens_per_s == 80 / 4.0
    assert figures.decode_tokens_per_s == 4 / 2.0
    assert figures.output_tokens_per_s == 1.0
    assert (figures.ttft_s, figures.load_s, figures.wall_s) == (2.0, 4.0, 6.0)
    assert (figures.prompt_tokens, figures.output_tokens, figures.hit_tokens) == (100, 6, 20)
    assert figures.num_blocks == 100
    assert meter.peak_used_blocks == 11, "what the last step used, though its requests are gone"
    assert meter.num_used_blocks == 0
    assert (meter.num_running, meter.num_waiting, meter.num_output_tokens) == (1, 2, 6)


def test_a_rate_without_a_step_of_its_kind_is_zero() -> None:
    figures = RunMeter(num_prompt_tokens=0, num_sequences=0).figures([], load_s=0.0, wall_s=0.0, num_blocks=2)
    assert (figures.prefill_tokens_per_s, figures.decode_tokens_per_s, figures.ttft_s) == (0.0, 0.0, 0.0)


def test_peak_memory_is_in_bytes() -> None:
    assert 10 * 2**20 < peak_rss_bytes() < 2**40
    before = peak_rss_bytes()
    block = bytearray(b"x") * (64 * 2**20)
    assert peak_rss_bytes() >= before
    assert peak_rss_bytes() == pytest.approx(before, abs=len(block) + 2**26)
