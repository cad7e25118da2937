"""What is measured of a cache manager alone, and how: the same code for Octavo's and for vLLM's.

Standard library only: it runs in each engine's own environment. Times are CPU seconds of this thread, so that other
processes of the machine disturb them little; the heap is frozen after a pool is built, as engines do, so that a
collector does not walk a million blocks in the middle of a measurement.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

BLOCK_TOKENS = 16
WINDOW = 1024
VOCABULARY = 250_000
PROMPT_TOKENS = 8192
NUM_PROMPTS = 24
"""Cold prompts of a case; the hit ones are the last of them, asked for again."""
NUM_HIT = 4
DECODE_STEPS = 96
DECODE_CONTEXT = 500
FAST_HASH = "prompts, fast hash"
"""The section of a peer's prompts under its fastest hash."""
KINDS = ("full", "hybrid")
PHASES = ("make", "look_up", "allocate", "free")
"""A prompt's way: the request made (and hashed, where that happens then), looked up, given blocks, ended."""


class Driver(Protocol):
    """The verbs of a cache manager that are timed. `kind` is `full`, or `hybrid`: full and sliding window."""

    name: str
    version: str

    def build(self, kind: str, num_blocks: int) -> Any:
        """A manager over a pool of so many blocks."""

    def make(self, request_id: str, token_ids: list[int]) -> Any:
        """A request, hashed if that is done when it is made."""

    def look_up(self, manager: Any, request: Any) -> Any:
        """What of it is cached."""

    def num_hit_tokens(self, found: Any) -> int: ...

    def allocate_prompt(self, manager: Any, request: Any, found: Any) -> bool:
        """Blocks for everything that is not cached; whether there were any."""

    def free(self, manager: Any, request: Any) -> None: ...

    def settle(self, request: Any) -> None:
        """All known tokens of the request are computed."""

    def append(self, request: Any, token_id: int) -> None: ...

    def allocate_token(self, manager: Any, request: Any) -> bool:
        """Room for one more token."""


def prompts(count: int, length: int) -> list[list[int]]:
    """Different prompts, the same in every process."""
    source = random.Random(f"{count} {length}")
    return [[source.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]


def measure_build(driver: Driver, kind: str, num_blocks: int) -> dict[str, float]:
    """CPU seconds to build a manager, and bytes that it holds then."""
    seconds = []
    for _ in range(3):
        gc.collect()
        started = time.thread_time()
        manager = driver.build(kind, num_blocks)
        seconds.append(time.thread_time() - started)
        del manager
    tracemalloc.start()
    manager = driver.build(kind, num_blocks)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del manager
    return {"seconds": statistics.median(seconds), "bytes": float(held)}


def measure_prompts(driver: Driver, kind: str, num_blocks: int, length: int = PROMPT_TOKENS) -> dict[str, Any]:
    """Median CPU seconds of each phase, for cold prompts and for ones that are wholly cached.

    With a pool that is smaller than all prompts together, later ones evict earlier ones.
    """
    manager = driver.build(kind, num_blocks)
    gc.collect()
    gc.freeze()
    texts = prompts(NUM_PROMPTS, length)
    cold = [_one_prompt(driver, manager, f"c{index}", text, 0) for index, text in enumerate(texts)]
    expected = (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    hit = [
        _one_prompt(driver, manager, f"h{turn}.{index}", text, expected)
        for turn in range(4)
        for index, text in enumerate(texts[-NUM_HIT:])
    ]
    gc.unfreeze()
    return {"cold": _medians(cold), "hit": _medians(hit)}


def _one_prompt(driver: Driver, manager: Any, request_id: str, text: list[int], expected: int) -> list[float]:
    clock = time.thread_time
    times = [clock()]
    request = driver.make(request_id, text)
    times.append(clock())
    found = driver.look_up(manager, request)
    times.append(clock())
    has_room = driver.allocate_prompt(manager, request, found)
    times.append(clock())
    driver.free(manager, request)
    times.append(clock())
    if not has_room or driver.num_hit_tokens(found) != expected:
        raise SystemExit(f"{driver.name}: {driver.num_hit_tokens(found)} tokens hit of {expected}, room: {has_room}")
    return [after - before for before, after in itertools.pairwise(times)]


def _medians(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    phases = {phase: statistics.median(column) for phase, column in zip(PHASES, zip(*runs, strict=True), strict=True)}
    return {**phases, "total": statistics.median(map(sum, runs))}


def measure_decode(driver: Driver, kind: str, num_blocks: int, num_requests: int) -> dict[str, float]:
    """Median CPU seconds of one step in which every request appends a token and gets room for it.

    Contexts differ, so in each step a few requests need a block and most do not. The median is taken over whole
    blocks of steps, so that every request has crossed as many block boundaries as in the long run.
    """
    manager = driver.build(kind, num_blocks)
    requests = []
    for index in range(num_requests):
        text = prompts(1, DECODE_CONTEXT + index % 64)[0]
        text[0] = index
        request = driver.make(f"d{index}", text)
        if not driver.allocate_prompt(manager, request, driver.look_up(manager, request)):
            raise SystemExit(f"{driver.name}: no room for {num_requests} requests in {num_blocks} blocks")
        driver.settle(request)
        requests.append(request)
    gc.collect()
    gc.freeze()
    appends, allocations = [], []
    for step in range(DECODE_STEPS):
        appends.append(_timed(requests, partial(_append, driver, step)))
        allocations.append(_timed(requests, partial(driver.allocate_token, manager)))
        for request in requests:
            driver.settle(request)
    gc.unfreeze()
    found = {"append": mean_of_steps(appends), "allocate": mean_of_steps(allocations)}
    return {**found, "total": found["append"] + found["allocate"]}


def _append(driver: Driver, token_id: int, request: Any) -> None:
    driver.append(request, token_id)


def _timed(requests: Sequence[Any], action: Callable[[Any], object]) -> float:
    started = time.thread_time()
    for request in requests:
        action(request)
    return time.thread_time() - started


class Section(Protocol):
    """Measures the cases of one section."""

    def __call__(self, *, is_quick: bool) -> list[dict[str, Any]]:
        """`is_quick`: fewer sizes do."""


def sections(driver: Driver) -> dict[str, Section]:
    """The ones of the tables, and how each grows with pool, prompt and batch."""
    return {
        "build": partial(build_cases, driver),
        "prompts": partial(prompt_cases, driver),
        "decode": partial(decode_cases, driver),
    }


def build_cases(driver: Driver, *, is_quick: bool) -> list[dict[str, Any]]:
    """Managers by pool."""
    return cases_of(measure_build, driver, [(kind, pool) for kind in KINDS for pool in _pools(is_quick=is_quick)])


def prompt_cases(driver: Driver, *, is_quick: bool) -> list[dict[str, Any]]:
    """Prompts by pool, and by length."""
    lengths = (512, 8192) if is_quick else (512, 2048, 8192, 32_768)
    by_pool = [(kind, pool, PROMPT_TOKENS) for kind in KINDS for pool in _pools(is_quick=is_quick)]
    by_length = [(kind, 65_536, length) for kind in KINDS for length in lengths if length != PROMPT_TOKENS]
    return cases_of(measure_prompts, driver, by_pool + by_length)


def decode_cases(driver: Driver, *, is_quick: bool) -> list[dict[str, Any]]:
    """Decoding steps by pool, and by batch."""
    by_pool = [(kind, pool, 256) for kind in KINDS for pool in _pools(is_quick=is_quick) if pool >= 65_536]
    by_batch = [(kind, 131_072, batch) for kind in KINDS for batch in batches(is_quick=is_quick)]
    return cases_of(measure_decode, driver, by_pool + by_batch)


def _pools(*, is_quick: bool) -> tuple[int, ...]:
    return (4096, 65_536) if is_quick else (4096, 65_536, 1_000_000)


def batches(*, is_quick: bool) -> tuple[int, ...]:
    """Numbers of requests that decode together."""
    return (16, 256) if is_quick else (1, 16, 64, 256, 1024)


def cases_of(measure: Callable[..., Any], driver: Driver, cases: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """What `measure` finds in each case."""
    return [{"case": list(case), **measure(driver, *case)} for case in cases]


def mean_of_steps(seconds: Sequence[float]) -> float:
    """The median of means over whole blocks of decoding steps, in which every request crosses a block boundary."""
    blocks = range(0, len(seconds), BLOCK_TOKENS)
    return statistics.median(statistics.fmean(seconds[start : start + BLOCK_TOKENS]) for start in blocks)


def run_driver(driver: Driver, more: Mapping[str, Section]) -> None:
    """Print the measurements of `driver`, and what `more` adds, as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sections", nargs="*", default=[])
    given = parser.parse_args()
    line: dict[str, Any] = {"engine": driver.name, "version": driver.version}
    for name, measure in {**sections(driver), **more}.items():
        if not given.sections or name in given.sections:
            line[name] = measure(is_quick=given.quick)
    sys.stdout.write("\n" + json.dumps(line) + "\n")
