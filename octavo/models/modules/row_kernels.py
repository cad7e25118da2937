"""Kernels over rows of activations: rotary embedding with the norm before it, and the gated activation.

transformers computes each as a chain of operators over whole tensors; one pass over a row that is still in the core's
cache costs a fraction. Arithmetic is float32; results are rounded to the element once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import types

from octavo.attention.numba_emit import FLOAT32, Element, VectorPath
from octavo.attention.numba_kernels import kernel_folder, source_digest
from octavo.attention.numba_memory import JobType
from octavo.attention.numba_vectors import (
    address_of,
    compiled,
    exp2,
    fetch_add,
    fma,
    load,
    load_some,
    maximum,
    splat,
    store,
    store_some,
    sum_of,
)
from octavo.attention.team import make_team
from octavo.compiling import c_function, kept_apart

ROTATE_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            "num_units_begun",
            "rows",
            "row_bytes",
            "num_tokens",
            "cosines",
            "sines",
            "angle_bytes",
            "num_query_heads",
            "num_key_heads",
            "head_size",
            "rotary_size",
            "query_factors",
            "key_factors",
            "unit_tokens",
        )
    ]
    + [("epsilon", np.float64)]
)
"""A row holds the queries of all heads, then the keys. `cosines`, `sines`: [tokens, rotary_size] of the rows' element.
`query_factors`, `key_factors`: float32 [head_size], or 0 where there is no norm. int64 unless named otherwise;
addresses and strides are bytes."""

GATE_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            "num_units_begun",
            "gates",
            "ups",
            "row_bytes",
            "out",
            "out_bytes",
            "num_rows",
            "size",
            "unit_rows",
            "activation",
        )
    ]
)
"""out[i] = activation(gates[i]) * ups[i], row by row."""

LOG2_E = math.log2(math.e)
GELU_SCALE = math.sqrt(2 / math.pi)


@compiled
def take(path: VectorPath, element: Element, address: int, count: int) -> Any:
    """The vector at `address`, of which `count` lanes exist."""
    return load(path, element, address) if count >= path.lanes else load_some(path, element, address, count)


@compiled
def give(path: VectorPath, element: Element, address: int, vector: Any, count: int) -> None:
    """Writes as many of the lanes as exist."""
    if count >= path.lanes:
        store(path, element, address, vector)
    else:
        store_some(path, element, address, vector, count)


@compiled
def scale_of_head(path: VectorPath, element: Element, head: int, size: int, epsilon: float) -> Any:
    """1 / the root mean square of a head's numbers."""
    squares = splat(path, 0.0)
    for i in range(0, size, path.lanes):
        numbers = take(path, element, head + i * element.num_bytes, size - i)
        squares = fma(numbers, numbers, squares)
    return np.float32(1) / np.sqrt(sum_of(squares) / np.float32(size) + np.float32(epsilon))


@compiled
def normed(path: VectorPath, element: Element, head: int, place: int, count: int, factors: int, scale: Any) -> Any:
    """`count` numbers of a head from `place` on, scaled and multiplied by their factors where there are any."""
    numbers = take(path, element, head + place * element.num_bytes, count)
    if factors == 0:
        return numbers
    return numbers * splat(path, scale) * take(path, FLOAT32, factors + 4 * place, count)


@compiled
def rotate_head(
    path: VectorPath, element: Element, job: Any, head: int, cosines: int, sines: int, factors: int
) -> None:
    """Norm and rotary embedding of one head in place; pairs lie half the rotary size apart."""
    scale = np.float32(1)
    if factors != 0:
        scale = scale_of_head(path, element, head, job.head_size, job.epsilon)
    half, width = job.rotary_size // 2, element.num_bytes
    for i in range(0, half, path.lanes):
        count, low, high = half - i, i * width, (half + i) * width
        left = normed(path, element, head, i, count, factors, scale)
        right = normed(path, element, head, half + i, count, factors, scale)
        left_cosine = take(path, element, cosines + low, count)
        right_cosine = take(path, element, cosines + high, count)
        left_sine, right_sine = take(path, element, sines + low, count), take(path, element, sines + high, count)
        give(path, element, head + low, left * left_cosine - right * left_sine, count)
        give(path, element, head + high, fma(left, right_sine, right * right_cosine), count)
    if factors != 0:
        for i in range(job.rotary_size, job.head_size, path.lanes):
            count = job.head_size - i
            give(path, element, head + i * width, normed(path, element, head, i, count, factors, scale), count)


@compiled
def rotate_rows(path: VectorPath, element: Element, job: Any) -> None:
    """One thread's share of the tokens."""
    while True:
        first = fetch_add(address_of(job), 1) * job.unit_tokens
        if first >= job.num_tokens:
            return
        for token in range(first, min(first + job.unit_tokens, job.num_tokens)):
            head = job.rows + token * job.row_bytes
            cosines, sines = job.cosines + token * job.angle_bytes, job.sines + token * job.angle_bytes
            for number in range(job.num_query_heads + job.num_key_heads):
                factors = job.query_factors if number < job.num_query_heads else job.key_factors
                rotate_head(path, element, job, head, cosines, sines, factors)
                head += job.head_size * element.num_bytes


@compiled
def silu(path: VectorPath, x: Any) -> Any:
    """x / (1 + exp(-x))."""
    return x / (splat(path, 1.0) + exp2(x * splat(path, -LOG2_E)))


@compiled
def gelu_tanh(path: VectorPath, x: Any) -> Any:
    """x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) * (x + 0.044715 * x**3)."""
    inner = x * fma(x * x, splat(path, 0.044715), splat(path, 1.0))
    return x / (splat(path, 1.0) + exp2(inner * splat(path, -2.0 * LOG2_E * GELU_SCALE)))


@compiled
def activated(path: VectorPath, code: int, x: Any) -> Any:
    """The activation of number `code` in `ACTIVATIONS`."""
    if code == 0:
        return silu(path, x)
    if code == 1:
        return gelu_tanh(path, x)
    return maximum(x, splat(path, 0.0))


ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2}
"""Numbers that stand for an activation."""


@compiled
def gate_rows(path: VectorPath, element: Element, job: Any) -> None:
    """One thread's share of the rows."""
    while True:
        first = fetch_add(address_of(job), 1) * job.unit_rows
        if first >= job.num_rows:
            return
        for row in range(first, min(first + job.unit_rows, job.num_rows)):
            for i in range(0, job.size, path.lanes):
                count, place = job.size - i, row * job.row_bytes + i * element.num_bytes
                gate, up = take(path, element, job.gates + place, count), take(path, element, job.ups + place, count)
                result = activated(path, job.activation, gate) * up
                give(path, element, job.out + row * job.out_bytes + i * element.num_bytes, result, count)


@cache
def rotate_kernel(path: VectorPath, element: Element) -> int:
    """Address of the C function; its argument is a `ROTATE_JOB`."""

    def rotate(job: Any) -> None:
        rotate_rows(path, element, job)

    return kernel_address(JobType("RotateJob", ROTATE_JOB), rotate)


@cache
def gate_kernel(path: VectorPath, element: Element) -> int:
    """Address of the C function; its argument is a `GATE_JOB`."""

    def gate(job: Any) -> None:
        gate_rows(path, element, job)

    return kernel_address(JobType("GateJob", GATE_JOB), gate)


_kept: list[Any] = []
"""Compiled functions whose addresses are in use."""


def kernel_address(job: JobType, function: Callable[..., None]) -> int:
    """Address of `function` as a C function whose argument is the address of a `job`."""
    digest = source_digest(*sorted(Path(__file__).parent.glob("*_kernels.py")))
    folders = [folder / digest for folder in (kernel_folder(), *kept_apart())]
    compiled_function = c_function(types.void(job), function, folders)
    _kept.append(compiled_function)
    return int(compiled_function.address)


TEAM = make_team()
"""Runs these kernels: torch's own threads, between whose products they stand."""


def num_threads_for(num_rows: int, unit_rows: int) -> int:
    """Threads worth waking for `num_rows` rows: few rows take less time than that."""
    return torch.get_num_threads() if num_rows > 4 * unit_rows else 1
