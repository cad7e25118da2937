"""Measures the CPU attention kernels: `python -m tools.measure_attention` prints the tables of docs/decisions.

What is compared runs in turn, round after round, so that a busy machine slows all of it alike; a cell is the median of
the rounds, with the fastest and the slowest behind it. Caches are larger than the CPU's, as they are when the weights
of a model pass by between two layers.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from octavo.attention.backend import AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.team import Team, ThreadTeam, make_team
from octavo.kv.specs import FullAttentionSpec

BLOCK = 16
CACHE_BYTES = 300_000_000
ROUNDS = 9
MOST_STEPS = 100


Step = tuple[int, int, int]
"""(requests, tokens in the cache, queries of each)."""


@dataclass(frozen=True)
class Shape:
    """A model's attention: (KV heads, query heads of each, head size)."""

    name: str
    num_kv_heads: int
    group_size: int
    size: int


SHAPES = (Shape("Gemma 3 270M", 1, 4, 256), Shape("SmolLM2-135M", 3, 3, 64), Shape("Llama 3 8B", 8, 4, 128))
STEPS: tuple[Step, ...] = ((1, 384, 1), (8, 384, 1), (64, 384, 1), (1, 8192, 1), (1, 512, 512), (1, 4096, 256))


Ways = dict[str, tuple["Work", Callable[[AttentionMetadata], object]]]
"""What is compared, by name: the pages that it reads and how it attends a step."""


class Work:
    """Steps of one layer over different pages of one pool, laid out as `layout` says."""

    def __init__(self, shape: Shape, step: Step, dtype: torch.dtype, layout: str = "tokens") -> None:
        requests, length, queries = step
        self.shape, self.num_queries = shape, queries
        heads, size, width = shape.num_kv_heads, shape.size, -(-length // BLOCK)
        self.bytes = requests * length * heads * 2 * size * dtype.itemsize
        self.flops = 4 * requests * heads * shape.group_size * size * sum(range(length - queries + 1, length + 1))
        copies = max(1, CACHE_BYTES // self.bytes) if queries == 1 else 1
        num_blocks = 1 + requests * width * copies
        pool = torch.randn(1 << 20).mul(0.5).to(dtype).repeat(-(-num_blocks * BLOCK * heads * 2 * size // (1 << 20)))
        pool = pool[: num_blocks * BLOCK * heads * 2 * size]
        if layout == "tokens":  # [block, token, head, K | V], as octavo/kv/specs.py
            pages = pool.view(num_blocks, BLOCK, heads, 2 * size)
            self.cache = KVCacheView(pages[..., :size], pages[..., size:])
        elif layout == "planes":  # [block, K or V, token, head]
            planes = pool.view(num_blocks, 2, BLOCK, heads, size)
            self.cache = KVCacheView(planes[:, 0], planes[:, 1])
        else:  # [block, K or V, head, token]
            planes = pool.view(num_blocks, 2, heads, BLOCK, size).transpose(2, 3)
            self.cache = KVCacheView(planes[:, 0], planes[:, 1])
        ids = torch.randperm(num_blocks - 1)[: requests * width * copies] + 1
        self.steps = [self._metadata(table, length) for table in ids.view(copies, requests, width).int()]
        self.query = torch.randn(requests * queries, heads * shape.group_size, size).to(dtype)
        self.spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=heads, head_size=size, dtype=str(dtype).removeprefix("torch.")
        )

    def _metadata(self, table: torch.Tensor, length: int) -> AttentionMetadata:
        requests, queries = table.shape[0], self.num_queries
        return AttentionMetadata(
            query_start=torch.arange(0, requests * queries + 1, queries, dtype=torch.int32),
            seq_lens=torch.full((requests,), length, dtype=torch.int32),
            block_table=table,
            slot_mapping=torch.zeros(requests * queries, dtype=torch.int64),
            num_requests=requests,
            num_tokens=requests * queries,
            max_query_len=queries,
            max_seq_len=length,
        )

    def octavo(self, backend: NumbaCPU) -> Callable[[AttentionMetadata], object]:
        layer = AttentionLayer(
            "layer",
            spec=self.spec,
            num_heads=self.query.shape[1],
            scale=self.shape.size**-0.5,
            backend=backend,
        )
        return lambda step: backend.attend(layer, self.cache, self.query, step)

    def torch(self, step: AttentionMetadata) -> object:
        """Gathers the pages and calls torch's attention; a decode's query group becomes rows of one head."""
        requests, length, heads = step.num_requests, step.max_seq_len, self.shape.num_kv_heads
        key, value = (
            side[step.block_table].flatten(1, 2)[:, :length].transpose(1, 2)
            for side in (self.cache.key, self.cache.value)
        )
        if self.num_queries == 1:
            query = self.query.view(requests, heads, self.shape.group_size, self.shape.size)
            return functional.scaled_dot_product_attention(query, key, value)
        query = self.query.view(requests, self.num_queries, -1, self.shape.size).transpose(1, 2)
        positions = torch.arange(length)
        mask = positions <= positions[-self.num_queries :, None]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def measure(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each way, round after round, in turn."""
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(ROUNDS), ways.items()):
        start = time.perf_counter()
        way()
        times[name].append(time.perf_counter() - start)
    return times


def cell(amount: float, seconds: list[float]) -> str:
    rates = sorted(amount / second for second in seconds)
    return f"{statistics.median(rates):.1f} ({rates[0]:.1f}-{rates[-1]:.1f})"


def run_steps(work: Work, way: Callable[..., object]) -> None:
    for metadata in work.steps[:MOST_STEPS]:
        way(metadata)


def compare(make: Callable[[Shape, Step, torch.dtype], Ways]) -> None:
    """A line per shape, step and dtype, a cell per way, and how the first does against the others."""
    for dtype, shape, step in itertools.product((torch.bfloat16, torch.float32), SHAPES, STEPS):
        ways = make(shape, step, dtype)
        times = measure({name: partial(run_steps, work, way) for name, (work, way) in ways.items()})
        work = next(iter(ways.values()))[0]
        is_decode, num_steps = work.num_queries == 1, len(work.steps[:MOST_STEPS])
        amount = (work.bytes if is_decode else work.flops) * num_steps / 1e9
        first = statistics.median(next(iter(times.values())))
        ratios = [f"{statistics.median(seconds) / first:.2f}" for seconds in list(times.values())[1:]]
        kind = f"{'x'.join(map(str, step[:2]))}" if is_decode else f"{step[2]} of {step[1]}"
        unit = "GB/s" if is_decode else "GFLOP/s"
        cells = [cell(amount, seconds) for seconds in times.values()]
        print("|", " | ".join([str(dtype)[6:], shape.name, kind, unit, *cells, *ratios]), "|", flush=True)


def kernels(shape: Shape, step: Step, dtype: torch.dtype) -> dict[str, tuple[Work, Callable[..., object]]]:
    work = Work(shape, step, dtype)
    return {"octavo": (work, work.octavo(NumbaCPU())), "torch": (work, work.torch)}


def layouts(shape: Shape, step: Step, dtype: torch.dtype) -> dict[str, tuple[Work, Callable[..., object]]]:
    backend = NumbaCPU()
    works = {name: Work(shape, step, dtype, name) for name in ("tokens", "planes", "heads")}
    return {name: (work, work.octavo(backend)) for name, work in works.items()}


def teams() -> None:
    """Milliseconds of a step's linear layers and attention, in turn as in a model, by the threads that attend."""
    choices: dict[str, tuple[Team, int]] = {
        "torch's own": (make_team(), 0),
        "Python threads": (ThreadTeam(), 0),
        "one": (make_team(), 1),
    }
    for (shape, layers, hidden, inner), step in itertools.product(
        ((SHAPES[0], 18, 640, 2048), (SHAPES[1], 30, 576, 1536)), ((1, 384, 1), (8, 384, 1), (1, 256, 256))
    ):
        work = Work(shape, step, torch.bfloat16)
        rows = torch.randn(work.query.shape[0], hidden).bfloat16()
        weights = [torch.randn(2 * inner + hidden, hidden).bfloat16() for _ in range(layers)]
        ways: dict[str, Callable[[], object]] = {
            name: partial(run_layers, work, work.octavo(NumbaCPU(team=team, num_threads=num_threads)), rows, weights)
            for name, (team, num_threads) in choices.items()
        }
        times = measure(ways)
        first = statistics.median(next(iter(times.values())))
        cells = [f"{1000 * statistics.median(seconds):.1f}" for seconds in times.values()]
        ratios = [f"{statistics.median(seconds) / first:.2f}" for seconds in list(times.values())[1:]]
        print("|", " | ".join([shape.name, "x".join(map(str, step)), *cells, *ratios]), "|", flush=True)


def run_layers(work: Work, attend: Callable[..., object], rows: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """A step of as many layers as there are weights, each a linear layer and attention."""
    for number, weight in enumerate(weights):
        functional.linear(rows, weight)
        attend(work.steps[number % len(work.steps)])


def main() -> None:
    """Prints the tables named by the arguments: kernels, layouts, teams."""
    print(f"{torch.get_num_threads()} threads, path {vector_paths()[0].name}, torch {torch.__version__}")
    for name in sys.argv[1:] or ["kernels", "layouts", "teams"]:
        print(f"\n{name}")
        {"kernels": lambda: compare(kernels), "layouts": lambda: compare(layouts), "teams": teams}[name]()


if __name__ == "__main__":
    main()
