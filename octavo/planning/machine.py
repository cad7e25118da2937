"""What a rank's device has, and what of it is left for the cache:

    KV cache = total * utilization - weights - runtime

Total and weights are facts. What the runtime takes beside them is an **estimate** by the formula below, which every
result shows; `--runtime-memory` replaces it by what was measured.
"""

from __future__ import annotations

import math

import msgspec

from octavo.config import DTYPE_BYTES, ModelConfig
from octavo.planning.devices import Device

BASE_BYTES = 1 << 30
"""Context of the driver, libraries, graphs, buffers of communication: about this much on current devices."""

RUNTIME_FORMULA = "1 GiB + tokens of a step * hidden * (4 + 8 / tp) * itemsize + max_num_seqs * vocabulary * 8"
"""Activations of `--max-num-batched-tokens` tokens, and twice the logits of `--max-num-seqs` requests in float32."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is. With `kv_memory_bytes` nothing else matters; with nothing given, one request's need is planned."""

    kv_memory_bytes: tuple[int, ...] = ()
    """The cache's bytes: one number, one for each pipeline stage, or one for each rank."""
    memory_bytes: tuple[int, ...] = ()
    """A device's bytes, given in the same way."""
    device: Device | None = None
    num_devices: int = 1
    memory_utilization: float = 0.92
    """The share of a device's memory that the engine may take: the reference engine's default."""
    weight_bytes: int | None = None
    """All weights together, where the user knows better than the files."""
    runtime_bytes: int | None = None
    """Of one rank, instead of the estimate."""


class RankBudget(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's budget equation: `kv_bytes = usable_bytes - weight_bytes - runtime_bytes`, at least 0."""

    total_bytes: int | None
    """The device's memory; None where the cache's bytes were given."""
    usable_bytes: int | None
    weight_bytes: int | None
    runtime_bytes: int | None
    kv_bytes: int
    missing_bytes: int = 0
    """What weights and runtime take beyond what there is."""


def runtime_bytes(model: ModelConfig, dtype: str, *, num_tokens: int, num_seqs: int, tensor_parallel_size: int) -> int:
    """The estimate of `RUNTIME_FORMULA`."""
    activations = num_tokens * model.hidden_size * (4 + 8 / tensor_parallel_size) * DTYPE_BYTES[dtype]
    return BASE_BYTES + math.ceil(activations) + num_seqs * model.vocab_size * 8


def rank_budget(total: int, utilization: float, weights: int, runtime: int) -> RankBudget:
    """The equation for one device."""
    usable = int(total * utilization)
    left = usable - weights - runtime
    return RankBudget(
        total_bytes=total,
        usable_bytes=usable,
        weight_bytes=weights,
        runtime_bytes=runtime,
        kv_bytes=max(left, 0),
        missing_bytes=max(-left, 0),
    )
