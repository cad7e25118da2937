"""Replicas behind one front on recorded traffic: what each way to route makes of their prefix caches and their loads.

    python -m benchmarks.routing --trace FILE.jsonl [--replicas 4] [--pool-tokens 1000000] [--requests N]
                                 [--policies NAME ...] [--tolerance X] [--json]

Each line of the trace is a request: `timestamp` in ms, `input_length` and `output_length` in tokens, and `hash_ids`,
one for each 512 tokens of the prompt, equal where everything up to their end is equal. Scheduler and cache are the
engine's own, so is the router, and it knows what it would know: what it sent, and the news of steps that have ended.
There is no model: a step takes `--step-ms` and `--token-us` for each of its tokens, on a clock that is only counted.
`one pool` is a single engine with the memory and the speed of all replicas together, which nothing can beat.

hit         share of all prompt tokens that the caches held
work        tokens computed by the busiest replica over the mean: how evenly work is divided in the end
load        the same of tokens under way, at the arrivals: how evenly at each moment
first       seconds from a request's arrival to its first token
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.engine.prefix_view import PrefixChain
from octavo.engine.router import TOLERANCE, PrefixRouter, RouterLimits
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from octavo.messages import EngineCoreRequest, ModelRunnerOutput, SchedulerOutput
from octavo.request import Request, SamplingParams
from octavo.sched.scheduler import Scheduler

BLOCK_TOKENS = 16
HASHED_TOKENS = 512
"""Tokens of the prompt that one of a trace's hash ids stands for."""
_OUTPUT_TOKEN = 2**30
_SPEC = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=64, dtype="bfloat16")


class TraceRequest(NamedTuple):
    """One line of a trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: list[int]

    def prompt(self) -> list[int]:
        """Token ids that are equal where the trace says that the prompts are."""
        token_ids = list(itertools.chain.from_iterable([each] * HASHED_TOKENS for each in self.hash_ids))
        return token_ids[: self.prompt_tokens]


class Costs(NamedTuple):
    """What a step takes."""

    step_s: float
    token_s: float

    def seconds(self, num_tokens: int) -> float:
        return self.step_s + self.token_s * num_tokens


class RoundRobin(PrefixRouter):
    """Each in turn."""

    def __init__(self, num_replicas: int, limits: RouterLimits, *, tolerance: float = TOLERANCE) -> None:
        super().__init__(num_replicas, limits, tolerance=tolerance)
        self._turns = itertools.count()

    def choose(self, chain: PrefixChain, replicas: Sequence[int]) -> int:
        return replicas[next(self._turns) % len(replicas)]


class LeastLoaded(PrefixRouter):
    """Where the fewest tokens are under way."""

    def choose(self, chain: PrefixChain, replicas: Sequence[int]) -> int:
        return min(replicas, key=lambda replica: self.loads[replica])


POLICIES: dict[str, type[PrefixRouter]] = {
    "prefix": PrefixRouter,
    "least loaded": LeastLoaded,
    "round robin": RoundRobin,
    "one pool": PrefixRouter,
}


class Replica:
    """One engine without a model. Owns: its scheduler, its requests, the step under way."""

    def __init__(self, pool_tokens: int, scheduler: SchedulerConfig, costs: Costs, max_model_len: int) -> None:
        config = KVCacheConfig(
            num_blocks=pool_tokens // BLOCK_TOKENS + 1,
            groups=(KVCacheGroupSpec(layer_names=("layers.0",), spec=_SPEC),),
            tensors=(),
            max_model_len=max_model_len,
            max_chunk_tokens=scheduler.max_num_batched_tokens,
        )
        manager = KVCacheManager(config, enable_caching=True)
        self.scheduler = Scheduler(scheduler, manager, max_model_len=max_model_len)
        self.num_computed = 0
        """Tokens, over all steps."""
        self._costs = costs
        self._requests: dict[str, Request] = {}
        self._step: SchedulerOutput | None = None

    @property
    def is_busy(self) -> bool:
        return self._step is not None

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.scheduler.add_request(request)

    def begin(self) -> float | None:
        """Start a step; the seconds that it takes, or None when there is nothing to run."""
        if not self.scheduler.has_unfinished_requests():
            return None
        self._step = self.scheduler.schedule()
        self.num_computed += self._step.num_tokens
        return self._costs.seconds(self._step.num_tokens)

    def end(self) -> list[Any]:
        """Settle the step under way; its news."""
        step, self._step = self._step, None
        if step is None:
            raise ValueError("there is no step to end")
        sampled = {}
        for request_id in step.num_scheduled_tokens:
            request = self._requests[request_id]
            if request.num_computed_tokens == request.num_tokens:
                sampled[request_id] = _OUTPUT_TOKEN
        outputs = self.scheduler.update_from_output(step, ModelRunnerOutput(sampled=sampled)).outputs
        for output in outputs:
            if output.finish_reason is not None:
                del self._requests[output.request_id]
        return outputs


class Outcome(NamedTuple):
    """What came of one policy."""

    policy: str
    hit: float
    work: float
    load: float
    first_mean_s: float
    first_p99_s: float
    preemptions: int
    wall_s: float
    """Of the simulation itself."""


class Setting(NamedTuple):
    """What is simulated."""

    num_replicas: int
    pool_tokens: int
    scheduler: SchedulerConfig
    costs: Costs
    tolerance: float = TOLERANCE

    def all_in_one(self) -> Setting:
        """One engine with the memory and the speed of all."""
        costs = self.costs._replace(token_s=self.costs.token_s / self.num_replicas)
        scheduler = SchedulerConfig(
            max_num_batched_tokens=self.scheduler.max_num_batched_tokens * self.num_replicas,
            max_num_seqs=self.scheduler.max_num_seqs * self.num_replicas,
        )
        return Setting(1, self.pool_tokens * self.num_replicas, scheduler, costs)


class Simulation:
    """One policy on one trace, event by event. Owns: the replicas, the router, the clock."""

    def __init__(self, policy: str, setting: Setting, max_model_len: int) -> None:
        self._policy = policy
        setting = setting.all_in_one() if policy == "one pool" else setting
        limits = RouterLimits(
            block_size=BLOCK_TOKENS,
            capacity_tokens=setting.pool_tokens,
            step_tokens=setting.scheduler.max_num_batched_tokens,
        )
        self._router = POLICIES[policy](setting.num_replicas, limits, tolerance=setting.tolerance)
        self._alive = range(setting.num_replicas)
        self._replicas = [
            Replica(setting.pool_tokens, setting.scheduler, setting.costs, max_model_len) for _ in self._alive
        ]
        self._ends: list[tuple[float, int]] = []
        """When the step of which replica ends."""
        self._arrived: dict[str, float] = {}
        self._loads: list[float] = []
        self._firsts: list[float] = []
        self._num_found = 0

    def run(self, trace: Sequence[TraceRequest]) -> Outcome:
        """Play the whole trace, to the end of its last request."""
        started = time.perf_counter()
        for number, line in enumerate(trace):
            self._advance(line.arrival_s)
            self._arrive(str(number), line)
        self._advance(float("inf"))
        work = [replica.num_computed for replica in self._replicas]
        return Outcome(
            policy=self._policy,
            hit=self._num_found / sum(line.prompt_tokens for line in trace),
            work=max(work) / statistics.mean(work),
            load=statistics.mean(self._loads),
            first_mean_s=statistics.mean(self._firsts),
            first_p99_s=sorted(self._firsts)[int(0.99 * (len(self._firsts) - 1))],
            preemptions=sum(replica.scheduler.stats().num_preemptions for replica in self._replicas),
            wall_s=time.perf_counter() - started,
        )

    def _advance(self, until: float) -> None:
        """End, in their order, the steps that end before `until`."""
        while self._ends and self._ends[0][0] <= until:
            now, number = heapq.heappop(self._ends)
            outputs = self._replicas[number].end()
            for output in outputs:
                arrived = self._arrived.pop(output.request_id, None)
                if arrived is not None:
                    self._firsts.append(now - arrived)
                    self._num_found += output.num_cached_tokens
            self._router.take_outputs(outputs)
            self._begin(number, now)

    def _arrive(self, name: str, line: TraceRequest) -> None:
        prompt = line.prompt()
        sampling = SamplingParams(max_tokens=line.output_tokens, ignore_eos=True)
        message = EngineCoreRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)
        number = self._router.route(message, self._alive)
        loads = self._router.loads
        self._loads.append(max(loads) / statistics.mean(loads))
        self._arrived[name] = line.arrival_s
        self._replicas[number].add(
            Request(name, prompt, sampling, arrival=int(name), max_output_tokens=line.output_tokens)
        )
        if not self._replicas[number].is_busy:
            self._begin(number, line.arrival_s)

    def _begin(self, number: int, now: float) -> None:
        seconds = self._replicas[number].begin()
        if seconds is not None:
            heapq.heappush(self._ends, (now + seconds, number))


def read_trace(path: Path, num_requests: int | None = None) -> list[TraceRequest]:
    """The requests of a trace in the order of their arrival. Raises `ValueError` for what is none."""
    return list(itertools.islice(_lines(path), num_requests))


def _lines(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                yield TraceRequest(
                    arrival_s=entry["timestamp"] / 1000,
                    prompt_tokens=entry["input_length"],
                    output_tokens=max(1, entry["output_length"]),
                    hash_ids=entry["hash_ids"],
                )
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}, is no request of a trace: {error!r}") from None


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes for people."""
    lines = [f"{'':<14}{'hit':>8}{'work':>8}{'load':>8}{'first, mean':>13}{'p99':>9}{'preemptions':>13}{'(took)':>9}"]
    lines += [
        f"{each.policy:<14}{each.hit:>8.1%}{each.work:>8.2f}{each.load:>8.2f}{each.first_mean_s:>11.2f} s"
        f"{each.first_p99_s:>7.1f} s{each.preemptions:>13,}{each.wall_s:>7.0f} s"
        for each in outcomes
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, help="only the first of them")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--pool-tokens", type=int, default=1_000_000, help="that the cache of one replica holds")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--token-us", type=float, default=80.0)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        trace = read_trace(asked.trace, asked.requests)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    setting = Setting(
        asked.replicas,
        asked.pool_tokens,
        SchedulerConfig(max_num_batched_tokens=asked.max_num_batched_tokens, max_num_seqs=asked.max_num_seqs),
        Costs(asked.step_ms / 1e3, asked.token_us / 1e6),
        asked.tolerance,
    )
    longest = max(line.prompt_tokens + line.output_tokens for line in trace)
    outcomes = [Simulation(policy, setting, longest + 1).run(trace) for policy in asked.policies]
    print(json.dumps([each._asdict() for each in outcomes]) if asked.json else table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
