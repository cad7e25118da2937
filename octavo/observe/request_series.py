"""What is measured of requests, as Prometheus series with the labels `model_name` and `engine`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from octavo.request import FinishReason

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_COMPLETIONS = (1, 2, 5, 10, 20, 50, 100)

LABELS = ("model_name", "engine")


class RequestTimes:
    """One sequence's way so far. Times are `time.perf_counter`; owns nothing else."""

    __slots__ = (
        "admitted", "arrived", "engine", "first_token", "has_ended", "last_token", "max_tokens", "num_cached",
        "num_prompt_tokens", "num_tokens",
    )  # fmt: skip

    def __init__(self, arrived: float, num_prompt_tokens: int, max_tokens: int | None) -> None:
        self.arrived = arrived
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.engine = -1
        """The core that took it out of its line."""
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.num_cached = 0
        self.num_tokens = 0
        self.has_ended = False
        """Whether its core has said so; its siblings may go on."""


class RequestSeries:
    """Owns: the series. Never: keeps anything of a request."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        self._histograms: list[Histogram] = []
        self._make_latencies()
        self._make_lengths()
        self._success = Counter(
            "vllm:request_success",
            "Sequences that ended, by reason; abort: nobody read any more, error: its core died, or could not go on.",
            [*LABELS, "finished_reason"],
            registry=registry,
        )

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        made = Histogram(name, text, LABELS, registry=self._registry, buckets=tuple(buckets))
        self._histograms.append(made)
        return made

    def _make_latencies(self) -> None:
        make = self._histogram
        self._ttft = make("vllm:time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._itl = make("vllm:inter_token_latency_seconds", "Between tokens.", _SHORT)
        self._old_itl = make("vllm:time_per_output_token_seconds", "The same, under its former name.", _SHORT)
        self._tpot = make("vllm:request_time_per_output_token_seconds", "Mean between a request's tokens.", _SHORT)
        self._e2e = make("vllm:e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self._queue = make("vllm:request_queue_time_seconds", "From arrival to admission.", _SECONDS)
        self._prefill = make("vllm:request_prefill_time_seconds", "From admission to the first token.", _SECONDS)
        self._decode = make("vllm:request_decode_time_seconds", "From the first token to the last.", _SECONDS)
        self._inference = make("vllm:request_inference_time_seconds", "From admission to the last token.", _SECONDS)

    def _make_lengths(self) -> None:
        make = self._histogram
        self._prompt = make("vllm:request_prompt_tokens", "Tokens of a prompt.", _COUNTS)
        self._computed = make(
            "vllm:request_prefill_kv_computed_tokens", "Tokens of a prompt that no cached prefix held.", _COUNTS
        )
        self._output = make("vllm:request_generation_tokens", "Tokens of an output.", _COUNTS)
        self._longest = make("vllm:request_max_num_generation_tokens", "Tokens of a request's longest output.", _COUNTS)
        self._max_tokens = make("vllm:request_params_max_tokens", "What max_tokens was.", _COUNTS)
        self._n = make("vllm:request_params_n", "What n was.", _COMPLETIONS)

    def start(self, engine: int) -> None:
        """A core is ready: its series are there, and empty where it is the first of its number."""
        for histogram in self._histograms:
            histogram.labels(self._model_name, str(engine))
        for reason in FinishReason:
            self._success.labels(self._model_name, str(engine), str(reason))

    def _observe(self, histogram: Histogram, times: RequestTimes, value: float) -> None:
        histogram.labels(self._model_name, str(max(0, times.engine))).observe(value)

    def admitted(self, times: RequestTimes, engine: int, step_began: float) -> None:
        """A core took a sequence out of its line."""
        if times.admitted is None:
            times.engine = engine
            times.admitted = max(times.arrived, step_began)
            self._observe(self._queue, times, times.admitted - times.arrived)

    def tokens_came(self, times: RequestTimes, num_tokens: int, now: float) -> None:
        """A sequence has new tokens."""
        times.num_tokens += num_tokens
        if times.first_token is None:
            times.first_token = now
            self._observe(self._ttft, times, now - times.arrived)
            self._observe(self._prefill, times, now - (times.admitted or times.arrived))
            self._observe(self._computed, times, times.num_prompt_tokens - times.num_cached)
        elif times.last_token is not None:
            for histogram in (self._itl, self._old_itl):
                self._observe(histogram, times, (now - times.last_token) / num_tokens)
        times.last_token = now

    def ended(self, times: RequestTimes, reason: FinishReason) -> None:
        """A sequence has ended, well or not."""
        self._success.labels(self._model_name, str(max(0, times.engine)), str(reason)).inc()
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._observe(self._prompt, times, times.num_prompt_tokens)
        self._observe(self._output, times, times.num_tokens)
        if times.max_tokens is not None:
            self._observe(self._max_tokens, times, times.max_tokens)
        first, last = times.first_token, times.last_token
        if first is None or last is None:
            return
        self._observe(self._e2e, times, last - times.arrived)
        self._observe(self._inference, times, last - (times.admitted or times.arrived))
        self._observe(self._decode, times, last - first)
        if times.num_tokens > 1:
            self._observe(self._tpot, times, (last - first) / (times.num_tokens - 1))

    def request_ended(self, siblings: list[RequestTimes]) -> None:
        """All completions of a request have ended well."""
        self._observe(self._n, siblings[0], len(siblings))
        self._observe(self._longest, siblings[0], max(times.num_tokens for times in siblings))
