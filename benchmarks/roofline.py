"""The least time that a workload could take on this machine, from what must be read and what must be multiplied.

    python -m benchmarks.roofline --model demo --workload w1.json [--bandwidth GB/s] [--gflops GFLOP/s]

Per step, with B requests in it, T tokens computed, and weights of P numbers, `vocabulary * hidden` of them the head's:

    bytes    2 P (bfloat16), and K and V of every token that a request's layers still see, 2 bytes a number
    flops    2 (P - head) T + 2 head B + 4 query_heads * head_size * (tokens seen), over layers and tokens
    seconds  the longer of bytes / bandwidth and flops / rate

The workload's prompts are one step each, a beginning that all share computed once; then everyone decodes together. A
processor's caches that keep a small model's weights from step to step could beat the reading.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.compare import weights_folder
from benchmarks.machine import in_line, machine
from benchmarks.peers.prompt_rows import shared_length
from benchmarks.weights import HF
from octavo.cli.workload import Workload, load_workload
from octavo.config import LayerConfig, ModelSource, read_environment
from octavo.formats.model_config import load_model_config
from octavo.formats.source import locate

NUMBER_BYTES = 2
"""bfloat16."""


class Machine(NamedTuple):
    """What a machine can do."""

    bytes_per_s: float
    flops_per_s: float


class Model(NamedTuple):
    """What a model's forward pass must read and multiply."""

    num_weights: int
    head_weights: int
    num_heads: int
    layers: tuple[LayerConfig, ...]


class Bound(NamedTuple):
    """The least seconds of a workload."""

    prefill_s: float
    decode_s: float
    decode_steps: int

    @property
    def wall_s(self) -> float:
        return self.prefill_s + self.decode_s


def read_model(folder: Path) -> Model:
    """A model in Hugging Face's format, from its headers."""
    config = load_model_config(locate(ModelSource(model=str(folder)), read_environment()))
    num_weights = (config.weight_bytes or 0) // NUMBER_BYTES
    return Model(num_weights, config.vocab_size * config.hidden_size, config.num_heads, config.layers)


def seen(layer: LayerConfig, length: int) -> int:
    """Tokens that the last of `length` tokens sees in this layer."""
    return min(length, layer.window) if layer.window is not None else length


def step_seconds(model: Model, machine_: Machine, spans: Sequence[tuple[int, int]], num_heads_rows: int) -> float:
    """Least seconds of a step that computes tokens `first` to `last` (exclusive) of each of some requests, and logits
    of `num_heads_rows` of them."""
    num_tokens = sum(last - first for first, last in spans)
    cached_numbers = attended = 0
    for layer in model.layers:
        for first, last in spans:
            # What a span reads: all that its first token still sees, and itself.
            cached_numbers += 2 * layer.num_kv_heads * layer.head_size * (seen(layer, first + 1) - 1 + last - first)
            attended += layer.head_size * _sum_seen(layer, first, last)
    num_bytes = NUMBER_BYTES * (model.num_weights + cached_numbers)
    body = model.num_weights - model.head_weights
    flops = 2 * body * num_tokens + 2 * model.head_weights * num_heads_rows + 4 * model.num_heads * attended
    return max(num_bytes / machine_.bytes_per_s, flops / machine_.flops_per_s)


def _sum_seen(layer: LayerConfig, first: int, last: int) -> int:
    """Sum of the tokens that each token from `first` to `last` (exclusive) sees."""
    window = last if layer.window is None else layer.window
    growing = range(first + 1, min(last, window) + 1)
    return sum(growing) + max(0, last - max(first, window)) * window


def bound(model: Model, machine_: Machine, workload: Workload) -> Bound:
    """The least time of a workload; see the module's text."""
    prompts = [request.prompt for request in workload.requests]
    shared = shared_length(prompts)
    prefill = step_seconds(model, machine_, [(0, shared)], 0) if shared else 0.0
    prefill += sum(step_seconds(model, machine_, [(shared, len(prompt))], 1) for prompt in prompts)
    decode = 0.0
    num_steps = max(request.max_tokens for request in workload.requests) - 1
    for step in range(num_steps):
        lengths = [len(request.prompt) + step for request in workload.requests if request.max_tokens > step + 1]
        spans = [(length, length + 1) for length in lengths]
        decode += step_seconds(model, machine_, spans, len(spans))
    return Bound(prefill, decode, num_steps)


def measure_machine(num_rounds: int = 12) -> Machine:
    """Best of some rounds on torch's threads: reading 1 GiB, and bfloat16 products of 2,048 x 2,048 matrices."""
    block = torch.ones(2**27, dtype=torch.int64)
    a, b = torch.randn(2, 2048, 2048).bfloat16()
    reads, products = [], []
    for _ in range(num_rounds):
        started = time.perf_counter()
        block.sum()
        read = time.perf_counter()
        torch.mm(a, b)
        reads.append(read - started)
        products.append(time.perf_counter() - read)
    return Machine(block.nbytes / min(reads), 2 * 2048**3 / min(products))


def described(name: str, workload: Workload, limit: Bound) -> str:
    """A line for people."""
    rate = workload.num_output_tokens / limit.wall_s
    parts = [f"{name} {workload.name}: wall at least {limit.wall_s:.3f} s (prompts {limit.prefill_s:.3f} s)"]
    parts.append(f"output at most {rate:.1f} tok/s")
    if len(workload.requests) == 1 and limit.decode_steps:
        parts.append(f"decode at most {limit.decode_steps / limit.decode_s:.1f} tok/s")
    return ", ".join(parts)


def main() -> None:
    """Print the bounds of what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="demo, demo-smollm2, or a folder made by benchmarks.weights")
    parser.add_argument("--workload", type=Path, action="append", required=True)
    parser.add_argument("--bandwidth", type=float, help="GB/s, instead of measuring")
    parser.add_argument("--gflops", type=float, help="GFLOP/s in bfloat16, instead of measuring")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure_machine() if None in (given.bandwidth, given.gflops) else Machine(0.0, 0.0)
    able = Machine(
        given.bandwidth * 1e9 if given.bandwidth else found.bytes_per_s,
        given.gflops * 1e9 if given.gflops else found.flops_per_s,
    )
    model = read_model(weights_folder(given.model) / HF)
    bounds = [(workload, bound(model, able, workload)) for workload in map(load_workload, given.workload)]
    if given.json:
        listed = [{"workload": workload.name, **limit._asdict(), "wall_s": limit.wall_s} for workload, limit in bounds]
        print(json.dumps({"machine": machine(), **able._asdict(), "model": given.model, "bounds": listed}))
        return
    print(in_line(machine()))
    print(f"{able.bytes_per_s / 1e9:.1f} GB/s, {able.flops_per_s / 1e9:.0f} GFLOP/s in bfloat16")
    for workload, limit in bounds:
        print(described(given.model, workload, limit))


if __name__ == "__main__":
    main()
