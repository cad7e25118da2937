"""What ranks in processes cost: an executor's step over null ranks, and start and steps of a real pipeline.

    python -m benchmarks.ranks [--ranks 1,2,8,64] [--ray 1,2] [--steps 1000] [--requests 8]
    python -m benchmarks.ranks --model demo-smollm2 --stages 1,2,3 [--rounds 3]

The first form sends a decode step of some requests to null ranks, which answer with a token for each: once to a rank in
this process, to as many processes as asked, and to as many that send back what they get and do nothing else, in turns;
or to so many actors of Ray. What is over the call in this process is the executor's, and what the echoes take of it no
executor of processes could save. The first step of each turn finds the caches of the processor as others left them, and
is told apart. The second form starts the model in a fresh process for each number of stages, in
turns, and then decodes.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.machine import in_line, machine
from octavo.config import EngineConfig, ModelSource, ParallelConfig, child_environment
from octavo.executor.executor import Executor
from octavo.executor.multiproc import MultiprocExecutor
from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import CachedRequests, MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from octavo.worker.rank import Rank

_RANK = f"{__name__ if __name__ != '__main__' else 'benchmarks.ranks'}:NullRank"
_BATCH = 100
"""Steps of one executor before it is another one's turn."""
_COLD = 3
"""Steps of a turn that are not counted with the others."""


class NullRank(Rank):
    """Computes nothing. Owns, never: nothing."""

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        self.global_rank = global_rank

    def init_worker(self, rendezvous: Rendezvous) -> None: ...

    def init_device(self) -> None: ...

    def load_model(self) -> None: ...

    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        return {}

    def get_shared_layers(self) -> dict[str, str]:
        return {}

    def determine_available_memory(self) -> int:
        return 0

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None: ...

    def warm_up(self) -> None: ...

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        return ModelRunnerOutput(sampled=dict.fromkeys(step.num_scheduled_tokens, 1))

    def stage_reports(self) -> list[StageReport]:
        return []

    def report_memory(self) -> MemoryReport:
        return MemoryReport(
            num_blocks=0, num_views=0, num_storages=0, storage_bytes=0, resident_bytes=0, resident_bytes_written=0
        )

    def write_cache(self) -> int:
        return 0

    def shutdown(self) -> None: ...


def decode_step(num_requests: int) -> SchedulerOutput:
    """A step in which each request computes one token and gets a block."""
    names = [f"request-{number}" for number in range(num_requests)]
    return SchedulerOutput(
        step=1,
        num_scheduled_tokens=dict.fromkeys(names, 1),
        cached_requests=CachedRequests(
            request_ids=names,
            num_computed_tokens=list(range(1000, 1000 + num_requests)),
            new_block_ids={names[0]: ([7], [8])},
        ),
        earlier_tokens=dict.fromkeys(names, 1),
    )


def config_of(num_ranks: int) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="none"), parallel=ParallelConfig(pipeline_parallel_size=num_ranks))


class Timed:
    """Owns: seconds of steps of one executor, and of those that were the first of a turn."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.first: list[float] = []

    def take(self, seconds: Sequence[float]) -> None:
        """Those of one turn."""
        self.steps += seconds[_COLD:]
        self.first += seconds[:1]


def timed(run: Callable[[SchedulerOutput], object], step: SchedulerOutput, count: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        run(step)
        found.append(time.perf_counter() - start)
    return found


_ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as peer:
    while data := peer.recv(65536):
        peer.sendall(data)
"""


class Echoes:
    """Processes that send back what they get. Owns: the processes, and a socket to each."""

    def __init__(self, count: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._peers: dict[int, socket.socket] = {}
        self._poll = select.poll()
        for _ in range(count):
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-ISc", _ECHO, str(theirs.fileno())]
                self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
            self._peers[ours.fileno()] = ours
            self._poll.register(ours, select.POLLIN)

    def execute_model(self, step: SchedulerOutput) -> None:
        """As a step is done: encoded once, sent to all, and an answer awaited from each."""
        frame = msgspec.msgpack.encode(step)
        for peer in self._peers.values():
            peer.sendall(frame)
        waiting = len(self._peers)
        while waiting:
            for handle, _ in self._poll.poll():
                self._peers[handle].recv(65536)
                waiting -= 1

    def shutdown(self) -> None:
        for peer in self._peers.values():
            peer.close()
        for process in self._processes:
            process.wait()


def null_steps(ranks: Sequence[int], *, num_steps: int, num_requests: int, ray: Sequence[int] = ()) -> dict[str, Timed]:
    """Seconds of steps, by where the ranks live; executors take turns."""
    step = decode_step(num_requests)
    found: defaultdict[str, Timed] = defaultdict(Timed)
    own = NullRank(config_of(1), global_rank=0, local_rank=0)
    for kind, num_ranks in [*(("processes", count) for count in ranks), *(("actors", count) for count in ray)]:
        executor = _executor(kind, num_ranks)
        executor.start()
        echoes = Echoes(num_ranks if kind == "processes" else 0)
        sides = {"in this process": own.execute_model, f"{num_ranks} {kind}": executor.execute_model}
        if kind == "processes":
            sides[f"{num_ranks} echoes"] = echoes.execute_model
        try:
            for run in sides.values():
                timed(run, step, 2 * _BATCH)
            done = 0
            while done < num_steps:
                for name, run in sides.items():
                    found[name].take(timed(run, step, _COLD + _BATCH))
                done += _BATCH
        finally:
            echoes.shutdown()
            executor.shutdown()
    return found


def _executor(kind: str, num_ranks: int) -> Executor:
    if kind == "processes":
        return MultiprocExecutor(config_of(num_ranks), rank_class=_RANK)
    from octavo.executor.ray import RayExecutor

    return RayExecutor(config_of(num_ranks), rank_class=_RANK)


def quantile(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def show_null_steps(found: dict[str, Timed]) -> None:
    print(f"{'null ranks':>16}  {'median us':>9}  {'p99 us':>9}  {'first us':>9}")
    for name, each in found.items():
        numbers_us = (statistics.median(each.steps), quantile(each.steps, 0.99), statistics.median(each.first))
        print(f"{name:>16}  " + "  ".join(f"{1e6 * seconds:9.0f}" for seconds in numbers_us))


_RUN = """
import json, sys, time
start = time.perf_counter()
from octavo import LLM, SamplingParams
options = json.loads(sys.argv[1])
llm = LLM(**options)
ready = time.perf_counter() - start
prompts = [{"prompt_token_ids": list(range(5, 69))}]
for num_tokens in (4, 64):
    before = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True), use_tqdm=False)
    seconds = (time.perf_counter() - before) / num_tokens
llm.shutdown()
print(json.dumps([ready, seconds]))
"""


def real_run(model: str, num_stages: int) -> tuple[float, float]:
    """Seconds from the first import to ready, and of a step, the prefill's share included, in a fresh process."""
    options = {"model": model, "pipeline_parallel_size": num_stages, "kv_memory": "256MiB", "max_model_len": 1024}
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(options)],
        check=True,
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    ready, seconds = json.loads(ran.stdout.splitlines()[-1])
    return ready, seconds


def show_real_runs(model: str, stages: Sequence[int], rounds: int) -> None:
    runs: dict[int, list[tuple[float, float]]] = {number: [] for number in stages}
    for _ in range(rounds):
        for number in stages:
            runs[number].append(real_run(model, number))
    print(f"{model:>16}  {'ready after s':>20}  {'ms a token':>20}")
    for number, found in runs.items():
        told = [
            f"{statistics.median(column) * scale:.2f} ({min(column) * scale:.2f} to {max(column) * scale:.2f})"
            for column, scale in zip(zip(*found, strict=True), (1, 1000), strict=True)
        ]
        print(f"{number:>9} stage(s)  {told[0]:>20}  {told[1]:>20}")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[1, 2, 8, 64])
    parser.add_argument("--ray", type=numbers, default=[])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--model")
    parser.add_argument("--stages", type=numbers, default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    print(in_line(machine()))
    if asked.model:
        show_real_runs(asked.model, asked.stages, asked.rounds)
    else:
        show_null_steps(null_steps(asked.ranks, num_steps=asked.steps, num_requests=asked.requests, ray=asked.ray))


if __name__ == "__main__":
    main()
