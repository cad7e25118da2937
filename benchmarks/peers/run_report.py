"""What a runner reports of one run: one line of JSON on stdout, the same for every engine.

Standard library only: this runs in each peer's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

MARK = '{"engine": '
"""How the line begins; what else an engine prints is passed over."""


class Asked(NamedTuple):
    """What a runner is to do."""

    prompts: list[list[int]]
    counts: list[int]
    """Output tokens of each prompt."""
    weights: Path
    """A folder in Hugging Face's format, or a GGUF file."""
    kv_bytes: int
    num_threads: int
    dtype: str
    """What to compute in, as torch names it; a runner whose engine settles that by the weights passes over it."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(len(prompt) + count for prompt, count in zip(self.prompts, self.counts, strict=True))


def read_arguments(arguments: Sequence[str] | None = None) -> Asked:
    """The runner's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--num-threads", type=int, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    given = parser.parse_args(arguments)
    requests = json.loads(given.workload.read_text("utf-8"))["requests"]
    return Asked(
        [request["prompt"] for request in requests],
        [request["max_tokens"] for request in requests],
        given.weights,
        given.kv_bytes,
        given.num_threads,
        given.dtype,
    )


def seconds_since_start() -> float:
    """Seconds since the operating system started this process, to about 10 ms (Linux)."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


class RunClock:
    """Times of one run. Owns: when each request's first and last token came. Never: touches an engine."""

    def __init__(self, num_requests: int) -> None:
        self.load_s = 0.0
        self.outputs: list[list[int]] = [[] for _ in range(num_requests)]
        self._first = [0.0] * num_requests
        self._last = [0.0] * num_requests
        self._started = 0.0

    def ready(self) -> None:
        """The engine is loaded, and the requests are handed in from now on."""
        self.load_s = seconds_since_start()
        self._started = time.perf_counter()

    def token(self, index: int, token_ids: Sequence[int], at: float | None = None) -> None:
        """Request number `index` got tokens now, or at a time of `time.perf_counter`."""
        if not token_ids:
            return
        now = time.perf_counter() if at is None else at
        if not self.outputs[index]:
            self._first[index] = now - self._started
        self._last[index] = now - self._started
        self.outputs[index] += token_ids

    def report(self, engine: str, *, version: str, dtype: str, num_threads: int, flags: dict[str, Any]) -> None:
        """Print the line."""
        line = {
            "engine": engine,
            "version": version,
            "dtype": dtype,
            "num_threads": num_threads,
            "flags": flags,
            "load_s": self.load_s,
            "start_to_first_token_s": self.load_s + min(self._first),
            "wall_s": max(self._last),
            "first_token_s": self._first,
            "finished_s": self._last,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "outputs": self.outputs,
        }
        sys.stdout.write("\n" + json.dumps(line) + "\n")
        sys.stdout.flush()
