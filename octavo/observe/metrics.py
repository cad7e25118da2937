"""Prometheus metrics, under the names that vLLM's dashboards ask for, and what those lack, under `octavo:`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from octavo.kv.planner import KVCachePlan
from octavo.messages import CacheFigures, EngineCoreOutputs, SchedulerStats
from octavo.observe.group_series import GroupSeries
from octavo.observe.request_series import LABELS, RequestSeries, RequestTimes
from octavo.request import FinishReason

_LIVES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)

SOURCES = ("local_compute", "local_cache_hit")
"""Where the K and V of prompt tokens come from."""

STALL_CAUSES = ("nobody_runs", "no_progress", "no_answer")


class _CoreSeries:
    """What is counted and shown of each engine core: series with the labels `model_name` and `engine`.

    Owns: the metrics, and where each core stood after its last step.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        self._stats: dict[int, SchedulerStats] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        """Usable blocks and tokens that a core's cache holds."""
        self._told: dict[int, tuple[str, ...]] = {}
        """Labels of what was told of each core's cache."""
        self.groups = GroupSeries(registry, model_name)
        self._make_counters()
        self._make_gauges()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, [*LABELS, *labels], registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, [*LABELS, *labels], registry=self._registry)

    def _make_counters(self) -> None:
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts, those that were cached included.")
        self.by_source = self._counter(
            "vllm:prompt_tokens_by_source",
            "The same by source: computed (local_compute), or held by the prefix cache (local_cache_hit).",
            "source",
        )
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.cached_tokens = self._counter("vllm:prompt_tokens_cached", "Prompt tokens that the prefix cache held.")
        self.preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self.queries = self._counter("vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.")
        self.hits = self._counter("vllm:prefix_cache_hits", "Tokens found there.")
        self.starts = self._counter("octavo:engine_core_starts", "Engine cores started, the first included.")
        self.causes = self._counter(
            "octavo:preemptions_by_cause",
            "Preemptions: for want of blocks for an output token (output), or for a part of a prompt (prompt).",
            "cause",
        )
        self._counts = (
            *(self.prompt_tokens, self.generation_tokens, self.cached_tokens),
            *(self.preemptions, self.queries, self.hits),
        )

    def _make_gauges(self) -> None:
        self.running = self._gauge("vllm:num_requests_running", "Sequences that run.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Sequences that wait.")
        self.usage = self._gauge("vllm:kv_cache_usage_perc", "Share of the blocks in use, 0 to 1.")
        self.old_usage = self._gauge("vllm:gpu_cache_usage_perc", "The same, under its former name.")
        self.used_blocks = self._gauge("octavo:kv_cache_used_blocks", "Blocks that requests hold.")
        self.cached_blocks = self._gauge("octavo:kv_cache_cached_blocks", "Unused blocks with content worth keeping.")
        self.free_blocks = self._gauge("octavo:kv_cache_free_blocks", "Blocks without content.")
        self.tokens = self._gauge("octavo:kv_cache_tokens", "Tokens of the requests that run.")
        self.occupancy = self._gauge("octavo:kv_cache_token_occupancy", "The same as a share of the capacity.")
        self.free_tokens = self._gauge("octavo:kv_cache_free_tokens", "Tokens that the unused blocks hold.")
        self.least_prefix = self._gauge(
            "octavo:min_reusable_prefix_tokens", "Prefixes are found again in multiples of this; 0: never."
        )
        self.by_reason = self._gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait: for room (capacity), or for another one's prompt or a grammar (deferred).",
            "reason",
        )
        self.sleeping = self._gauge(
            "vllm:engine_sleep_state", "Whether the core is awake: always, there is no other state.", "sleep_state"
        )
        self._info = self._gauge(
            "vllm:cache_config_info",
            "What the KV cache is made of.",
            *("block_size", "num_gpu_blocks", "num_groups", "capacity_tokens", "max_model_len"),
        )

    def add(self, counter: Counter, engine: int, amount: float) -> None:
        """Count for one core."""
        counter.labels(self._model_name, str(engine)).inc(amount)

    def start(self, plan: KVCachePlan, engine: int) -> None:
        """A core is ready; it has no requests, and counts from 0."""
        figures, groups = plan.figures, plan.configs[0].groups
        self._stats.pop(engine, None)
        self._sizes[engine] = (figures.usable_blocks, figures.capacity_tokens)
        if engine in self._told:
            self._info.remove(*self._told[engine])
        block_size = groups[0].spec.block_size if groups else 0
        sizes = (block_size, figures.num_blocks, len(groups), figures.capacity_tokens, figures.max_model_len)
        self._told[engine] = (self._model_name, str(engine), *map(str, sizes))
        self._info.labels(*self._told[engine]).set(1)
        self.add(self.starts, engine, 1)
        for counter in self._counts:
            self.add(counter, engine, 0)
        for cause in ("prompt", "output"):
            self.causes.labels(self._model_name, str(engine), cause)
        for source in SOURCES:
            self.by_source.labels(self._model_name, str(engine), source)
        for state in ("awake", "weights_offloaded", "discard_all"):
            self.sleeping.labels(self._model_name, str(engine), state).set(state == "awake")
        self.groups.start(groups, figures.usable_blocks, engine)
        for gauge in (
            self.running,
            self.waiting,
            self.usage,
            self.old_usage,
            self.used_blocks,
            self.tokens,
            self.occupancy,
        ):
            self._set(gauge, engine, 0)
        is_reusable = bool(groups) and all(group.spec.prefix_cacheable for group in groups)
        self._set(self.least_prefix, engine, figures.scheduler_block_size if is_reusable else 0)
        self._show_waiting(engine, 0, 0)
        self._set(self.free_blocks, engine, figures.usable_blocks)
        self._set(self.free_tokens, engine, figures.capacity_tokens)

    def prompt_done(self, engine: int, num_tokens: int, num_cached: int) -> None:
        """A sequence has its first token: its prompt is computed, but for what was cached."""
        self.add(self.prompt_tokens, engine, num_tokens)
        self.add(self.cached_tokens, engine, num_cached)
        for source, amount in zip(SOURCES, (num_tokens - num_cached, num_cached), strict=True):
            self.by_source.labels(self._model_name, str(engine), source).inc(amount)

    def show(self, stats: SchedulerStats, engine: int, num_held_tokens: int) -> None:
        """Where a core stands after a step; `num_held_tokens` are those of the requests that run."""
        before = self._stats.get(engine)
        self._stats[engine] = stats
        for counter, name in (
            (self.preemptions, "num_preemptions"),
            (self.queries, "prefix_query_tokens"),
            (self.hits, "prefix_hit_tokens"),
        ):
            self.add(counter, engine, _growth(before, stats, name))
        self._show_waiting(engine, stats.num_waiting - stats.num_parked, stats.num_parked)
        for_prompts = _growth(before, stats, "num_prompt_preemptions")
        for_outputs = _growth(before, stats, "num_preemptions") - for_prompts
        for cause, count in (("prompt", for_prompts), ("output", for_outputs)):
            self.causes.labels(self._model_name, str(engine), cause).inc(count)
        num_usable, capacity = self._sizes.get(engine, (0, 0))
        usage = stats.num_used_blocks / max(1, num_usable)
        for gauge, value in (
            (self.running, stats.num_running),
            (self.waiting, stats.num_waiting),
            (self.used_blocks, stats.num_used_blocks),
            (self.cached_blocks, stats.num_cached_blocks),
            (self.free_blocks, stats.num_free_blocks),
            (self.usage, usage),
            (self.old_usage, usage),
            (self.free_tokens, capacity * (1 - usage)),
            (self.tokens, num_held_tokens),
            (self.occupancy, num_held_tokens / capacity if capacity else 0.0),
        ):
            self._set(gauge, engine, value)

    def _show_waiting(self, engine: int, num_without_room: int, num_parked: int) -> None:
        for reason, value in (("capacity", num_without_room), ("deferred", num_parked)):
            self.by_reason.labels(self._model_name, str(engine), reason).set(value)

    def _set(self, gauge: Gauge, engine: int, value: float) -> None:
        gauge.labels(self._model_name, str(engine)).set(value)


def _growth(before: SchedulerStats | None, now: SchedulerStats, name: str) -> float:
    """By how much a count has grown; a core that was started again counts from 0."""
    return float(max(0, getattr(now, name) - (getattr(before, name) if before is not None else 0)))


class EngineMetrics:
    """Owns: the registry and the times of every unfinished sequence. Never: steers anything.

    Every series has the label `model_name`, and what is of one engine core, or of a request in it, also `engine`, its
    number: sums over it are the dashboard's to make. `process_...` and `python_...` are of the server's own process.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._model_name = model_name
        self._sequences: dict[str, RequestTimes] = {}
        self._cores = _CoreSeries(self.registry, model_name)
        self._requests = RequestSeries(self.registry, model_name)
        self.failures = self._counter("octavo:request_failures", "Requests that ended with an error.")
        self.given_up = self._counter("octavo:requests_given_up", "Requests whose reader went away.")
        self._refusals = Counter(
            "vllm:admission_rejections",
            "Requests answered with 429, because too many waited.",
            ["model_name", "reason"],
            registry=self.registry,
        ).labels(model_name, "max_num_queued_reqs")
        self._stalls = Counter(
            "octavo:engine_stalls",
            "Times that nothing moved: nobody could run (nobody_runs), a core went on without a token (no_progress), "
            "or a core did not come out of a step (no_answer).",
            ["model_name", "cause"],
            registry=self.registry,
        )
        for cause in STALL_CAUSES:
            self._stalls.labels(model_name, cause)
        self._make_histograms()

    # -- what there is --------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _make_histograms(self) -> None:
        def make(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(name, text, LABELS, registry=self.registry, buckets=tuple(buckets))

        self._step_tokens = make("vllm:iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS)
        self._block_times = (
            make("vllm:kv_block_lifetime_seconds", "Of a cached block, until its content is given up.", _LIVES),
            make("vllm:kv_block_idle_before_evict_seconds", "From a cached block's last use to that.", _LIVES),
            make("vllm:kv_block_reuse_gap_seconds", "Between two uses of a cached block.", _LIVES),
        )

    # -- what happens ---------------------------------------------------------------------------------------------

    def core_started(self, plan: KVCachePlan, engine: int = 0) -> None:
        """Core number `engine` is ready; it has no requests, and counts from 0."""
        self._cores.start(plan, engine)
        self._requests.start(engine)
        for histogram in (self._step_tokens, *self._block_times):
            histogram.labels(self._model_name, str(engine))

    def request_refused(self) -> None:
        """Too many requests waited for one more."""
        self._refusals.inc()

    def stalled(self, cause: str) -> None:
        """Nothing moved; `cause` is one of `STALL_CAUSES`."""
        self._stalls.labels(self._model_name, cause).inc()

    def sequence_arrived(
        self, sequence_id: str, num_prompt_tokens: int, now: float, *, max_tokens: int | None = None
    ) -> None:
        """A sequence was handed to a core."""
        self._sequences[sequence_id] = RequestTimes(now, num_prompt_tokens, max_tokens)

    def request_finished(self, reasons: Mapping[str, FinishReason]) -> None:
        """All sequences of a request have ended well, each for its reason."""
        ended = {name: times for name in reasons if (times := self._sequences.pop(name, None)) is not None}
        for name, times in ended.items():
            self._requests.ended(times, reasons[name])
        if ended:
            self._requests.request_ended(list(ended.values()))

    def request_failed(self, sequence_ids: Iterable[str], reason: FinishReason) -> None:
        """A request has ended with an error, or its reader went away (`abort`)."""
        (self.given_up if reason is FinishReason.ABORT else self.failures).inc()
        for sequence_id in sequence_ids:
            times = self._sequences.pop(sequence_id, None)
            if times is not None:
                self._requests.ended(times, reason)

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        """News of one step of one core."""
        num_new = sum(len(output.new_token_ids) for output in outputs.outputs)
        for sequence_id in outputs.admitted:
            if (times := self._sequences.get(sequence_id)) is not None:
                self._requests.admitted(times, outputs.engine, now - outputs.step_s)
        for output in outputs.outputs:
            times = self._sequences.get(output.request_id)
            if times is None:
                continue
            if output.new_token_ids:
                if times.first_token is None:
                    times.num_cached = min(max(0, output.num_cached_tokens), times.num_prompt_tokens)
                    self._cores.prompt_done(outputs.engine, times.num_prompt_tokens, times.num_cached)
                self._requests.tokens_came(times, len(output.new_token_ids), now)
            times.has_ended = output.finish_reason is not None
        if num_new or outputs.num_prompt_tokens:
            step_tokens = self._step_tokens.labels(self._model_name, str(outputs.engine))
            step_tokens.observe(num_new + outputs.num_prompt_tokens)
            self._cores.add(self._cores.generation_tokens, outputs.engine, num_new)
        held = sum(
            times.num_prompt_tokens + times.num_tokens
            for times in self._sequences.values()
            if times.engine == outputs.engine and not times.has_ended
        )
        self._cores.show(outputs.stats, outputs.engine, held)
        if outputs.cache is not None:
            self._note_cache(outputs.cache, outputs.engine)

    def _note_cache(self, figures: CacheFigures, engine: int) -> None:
        self._cores.groups.show(figures, engine)
        times = (figures.lifetimes_s, figures.idle_s, figures.reuse_gaps_s)
        for histogram, seconds in zip(self._block_times, times, strict=True):
            for value in seconds:
                histogram.labels(self._model_name, str(engine)).observe(value)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class ThroughputMeter:
    """What the line that is logged every ten seconds says. Owns: its sums since the last line."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._num_prompt_tokens = self._num_new_tokens = 0
        self._since = time.perf_counter()
        self._stats: dict[int, SchedulerStats] = {}
        self._has_news = False

    def step_ended(self, outputs: EngineCoreOutputs) -> None:
        """Count one step."""
        self._num_prompt_tokens += outputs.num_prompt_tokens
        self._num_new_tokens += sum(len(output.new_token_ids) for output in outputs.outputs)
        self._stats[outputs.engine] = outputs.stats
        self._has_news = True

    def line(self, now: float) -> str | None:
        """The line, and begin anew; None when nothing has happened since the last one."""
        if not self._has_news:
            return None
        stats, seconds = SchedulerStats.total(self._stats.values()), max(1e-9, now - self._since)
        prompt, new = self._num_prompt_tokens / seconds, self._num_new_tokens / seconds
        self._num_prompt_tokens = self._num_new_tokens = 0
        self._since, self._has_news = now, False
        usage = stats.num_used_blocks / max(1, stats.num_blocks - len(self._stats))
        hit_rate = stats.prefix_hit_tokens / stats.prefix_query_tokens if stats.prefix_query_tokens else 0.0
        return (
            f"Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {new:.1f} tokens/s, "
            f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
            f"{self._device} KV cache usage: {usage:.1%}, Prefix cache hit rate: {hit_rate:.1%}"
        )
