"""One request of full length in exactly the pool that the plan prints: nothing fails, nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.kv.specs import KVCacheConfig
from octavo.messages import ModelRunnerOutput
from octavo.request import Request, SamplingParams
from octavo.sched.scheduler import Scheduler
from tests.null_executor import NullRank
from tests.planning.build import planned
from tests.sched.harness import make_request

VOCAB_SIZE = 64


class Run:
    """Requests through a scheduler over one null rank, whose memory is watched."""

    def __init__(self, config: KVCacheConfig, max_num_batched_tokens: int) -> None:
        settings = SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens)
        self.manager = KVCacheManager(config, enable_caching=True)
        self.scheduler = Scheduler(settings, self.manager, max_model_len=config.max_model_len)
        self.rank = NullRank({}, global_rank=0, vocab_size=VOCAB_SIZE, available_bytes=0)
        self.rank.initialize_from_config([config])
        self.chunks: list[int] = []
        """Tokens of each step."""

    def serve(self, request_id: str, prompt: list[int], num_output: int) -> Any:
        sampling = SamplingParams(max_tokens=num_output, ignore_eos=True)
        request = make_request(request_id, prompt, max_tokens=num_output, sampling=sampling)
        self.scheduler.add_request(request)
        self.finish()
        return request

    def finish(self) -> None:
        """Run until nobody waits."""
        self.chunks = []
        while self.scheduler.has_unfinished_requests():
            step = self.scheduler.schedule()
            self.chunks.append(step.num_tokens)
            self.scheduler.update_from_output(step, self.rank.execute_model(step))


def check_run(model: str, length: int, batched: int) -> list[int]:
    """Serve one request of `length`, then another with its beginning; the chunks of the first."""
    asked = planned(model, 0, max_model_len=length, max_num_batched_tokens=batched)
    (config,) = asked.plan.configs
    assert config.num_blocks == sum(asked.plan.figures.blocks_per_request) + 1
    run = Run(config, batched)
    num_output = 24
    prompt = [(7 * place * place + 3 * place) % VOCAB_SIZE for place in range(length - num_output)]
    first = run.serve("first", prompt, num_output)
    chunks = run.chunks
    assert first.num_preemptions == 0
    assert sum(chunks) == length - 1, "no token is computed twice, and the last one not at all"
    run.manager.check_integrity()
    again = run.serve("again", prompt[: length // 2], 8)
    assert again.num_preemptions == 0
    assert again.num_cached_tokens + sum(run.chunks) == length // 2 + 7
    return chunks


@pytest.mark.parametrize("batched", [512, 2048, 8192])
@pytest.mark.parametrize("model", ["Gemma-3-270m", "gpt-oss-20b", "Mistral-7B-v0.1", "Llama-4-Scout", "Llama-3.1-8B"])
def test_a_request_of_full_length_runs_in_the_printed_pool(model: str, batched: int) -> None:
    check_run(model, 4096, batched)


def steps_of_prompts(model: str, length: int, count: int, *, times: int) -> list[int]:
    """Tokens of each step for `count` requests of `length` that come at once, in `times` the memory that they need."""
    need = planned(model, 0, max_model_len=length).plan.figures
    num_bytes = times * (count * sum(need.blocks_per_request) + 1) * need.ranks[0].bytes_per_block
    asked = planned(model, num_bytes, max_model_len=length)
    assert times > 1 or asked.plan.figures.max_concurrency == count
    run = Run(asked.plan.configs[0], asked.inquiry.max_num_batched_tokens)
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    requests = [
        make_request(
            f"r{number}",
            [(7 * place * place + 3 * place + 11 * number) % VOCAB_SIZE for place in range(length - 8)],
            max_tokens=8,
            sampling=sampling,
        )
        for number in range(count)
    ]
    for request in requests:
        run.scheduler.add_request(request)
    run.finish()
    assert sum(request.num_preemptions for request in requests) == 0
    return run.chunks


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Gemma-3-270m", "gpt-oss-20b"])
def test_prompts_are_computed_in_the_steps_of_a_large_pool(model: str) -> None:
    """Four prompts of 8,192 tokens at once, in exactly the room for four: step by step as with four times the room."""
    exact = steps_of_prompts(model, 8192, 4, times=1)
    assert exact == steps_of_prompts(model, 8192, 4, times=4)
    assert sum(exact) == 4 * 8191
    assert len([tokens for tokens in exact if tokens > 4]) == 16  # 2,048 tokens each


def schedule_all(
    config: KVCacheConfig, requests: Sequence[Request], batched: int, *, caching: bool
) -> tuple[list[int], list[int]]:
    """(requests that run in each step, tokens of each step), without a rank: it would have to model states."""
    manager = KVCacheManager(config, enable_caching=caching)
    settings = SchedulerConfig(max_num_batched_tokens=batched)
    scheduler = Scheduler(settings, manager, max_model_len=config.max_model_len)
    for request in requests:
        scheduler.add_request(request)
    running, chunks = [], []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        running.append(scheduler.stats().num_running)
        chunks.append(step.num_tokens)
        ready = [one for one in requests if one.request_id in step.num_scheduled_tokens]
        sampled = {one.request_id: 1 for one in ready if one.num_computed_tokens == one.num_tokens}
        scheduler.update_from_output(step, ModelRunnerOutput(sampled=sampled))
        manager.check_integrity()
    return running, chunks


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [512, 2048])
@pytest.mark.parametrize("model", ["Granite-4.0-H-Small", "Qwen3-Next-80B-A3B", "Jamba-v0.1", "Llama-3.1-8B"])
def test_as_many_requests_run_at_once_as_the_plan_says(model: str, length: int, caching: bool) -> None:
    """A state is one block of a request: admitting another request leaves no second one."""
    count, num_output = 8, 8
    settings: dict[str, Any] = {"max_model_len": length, "enable_prefix_caching": caching}
    need = planned(model, 0, **settings).plan.figures
    num_bytes = (count * sum(need.blocks_per_request) + 1) * need.ranks[0].bytes_per_block
    (config,) = planned(model, num_bytes, **settings).plan.configs
    sampling = SamplingParams(max_tokens=num_output, ignore_eos=True)
    requests = [
        make_request(f"r{number}", [number] * (length - num_output), max_tokens=num_output, sampling=sampling)
        for number in range(count)
    ]
    running, _ = schedule_all(config, requests, count * length, caching=caching)
    assert max(running) == count
    # States at borders are kept for a step while there is room: then some are admitted a few steps later.
    assert caching or running[0] == count
    assert sum(request.num_preemptions for request in requests) == 0


@pytest.mark.slow
@pytest.mark.parametrize("batched", [2048, 16384])
def test_gemma_3_27b_at_131072_tokens_needs_two_per_cent_more_than_ideal(batched: int) -> None:
    """10.41 GiB is ideal. The reference reserves 11.41 GiB with 2,048 tokens in flight and 17.98 GiB with 16,384."""
    asked = planned("Gemma-3-27b", 0, max_model_len=131072, max_num_batched_tokens=batched)
    (rank,) = asked.plan.figures.ranks
    assert rank.ideal_bytes / 2**30 == pytest.approx(10.406, abs=0.001)
    assert rank.one_request_bytes < 1.02 * rank.ideal_bytes
    assert asked.reference.plan is not None
    theirs = asked.reference.plan.figures.ranks[0].one_request_bytes / 2**30
    assert theirs == pytest.approx({2048: 11.41, 16384: 17.98}[batched], abs=0.01)
    chunks = check_run("Gemma-3-27b", 131072, batched)
    prefill = [chunk for chunk in chunks if chunk > 1]
    # Chunks are long until the pool is nearly full, and never shorter than the plan is sure of.
    assert min(prefill[:-1]) >= 256
    assert sum(chunk for chunk in prefill if chunk >= 1024) > 0.85 * 131072
