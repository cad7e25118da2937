"""Products of a few rows with a weight [outputs, inputs] that lies row by row, at the speed of reading the weight.

A tile is `TILE_OUTPUTS` rows of the weight by as many rows of the input as are left, `TILE_ROWS` at most. Each of its
sums is taken in the same order whatever else is in the tile, so a row's result does not depend on its neighbours, but
for what `wide_kernels` does of many rows of bfloat16.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    BFLOAT16,
    INT64,
    LINE,
    Element,
    VectorPath,
    emit_load,
    emit_prefetch,
    emit_store,
)
from octavo.attention.numba_memory import JobType
from octavo.attention.numba_tiles import Accumulators, load_pairs, sum_four, uses_dot
from octavo.attention.numba_vectors import address_of, compiled, fetch_add, primitive
from octavo.models.modules.row_kernels import kernel_address
from octavo.models.modules.wide_kernels import multiply_wide, panel_outputs, tile_rows

ROWS_FIELDS = ("num_units_begun", "rows", "row_bytes", "num_rows", "out", "out_bytes")
"""int64 fields that every job of a product of few rows begins with: input rows, and where their results go. Addresses
and bytes, unless named otherwise; the first counts up while a kernel runs, from 0."""

LINEAR_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            *ROWS_FIELDS,
            "weight",
            "weight_bytes",
            "bias",
            "num_outputs",
            "num_inputs",
            "unit_outputs",
            "block_rows",
            "next_weight",
        )
    ]
)
"""out[i, j] = rows[i] . weight[j] + bias[j]. `weight_bytes` from one output's weights to the next's; `bias` is 0 where
there is none, else of the rows' element; `unit_outputs` are shared out at a time where rows are few, a multiple of
`TILE_OUTPUTS`; where they are many, `block_rows` are widened at a time, a multiple of `REST_ROWS`. `next_weight` is the
weight of the product that comes next, or 0."""

TILE_OUTPUTS = 4
TILE_ROWS = 4
FEW_ROWS = 12
"""Up to so many rows of bfloat16 are multiplied with weights as they lie; more are worth widening weights for."""


@primitive
def product_tile(
    typing_context: Any,
    path: Any,
    element: Any,
    num_rows: Any,
    rows: Any,
    row_bytes: Any,
    weights: Any,
    weight_bytes: Any,
    num_outputs: Any,
    num_inputs: Any,
    ahead: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Results of `num_rows` (at least 1; more than `TILE_ROWS` count as that many) rows and `TILE_OUTPUTS` outputs.

    Only the first `num_outputs` outputs exist; nothing is read or written of the others. The weights of
    the tile at `ahead` are asked for meanwhile.
    """
    kinds = path.value, element.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for count in range(TILE_ROWS, 0, -1):
            matches = "==" if count < TILE_ROWS else ">="
            with builder.if_then(builder.icmp_signed(matches, arguments[2], INT64(count))):
                _emit_products(builder, kinds, count, arguments[3:])
        return context.get_dummy_value()

    return types.none(path, element, *[types.int64] * 11), emit


def _emit_products(builder: Any, kinds: tuple[VectorPath, Element], num_rows: int, arguments: Any) -> None:
    path, element = kinds
    rows, row_bytes, weights, weight_bytes, num_outputs, num_inputs, ahead, bias, out, out_bytes = arguments
    row_at = [builder.add(rows, builder.mul(INT64(row), row_bytes)) for row in range(num_rows)]
    weight_at = [_weight_at(builder, weights, weight_bytes, output, num_outputs) for output in range(TILE_OUTPUTS)]
    totals = Accumulators(builder, path, num_rows, TILE_OUTPUTS)
    is_pairs = uses_dot(path, element, element)
    step = path.lanes * (2 if is_pairs else 1)
    line_steps = max(LINE // (step * element.num_bytes), 1)
    line = line_steps * step

    def add_step(start: Any, some: Any) -> None:
        place = builder.mul(start, INT64(element.num_bytes))

        def part(at: Any) -> Any:
            address = builder.add(at, place)
            if is_pairs:
                return load_pairs(builder, path, address, some)
            return emit_load(builder, path, element, address, some)

        parts = [part(at) for at in row_at]
        for output, at in enumerate(weight_at):
            weight = part(at)
            for row, numbers in enumerate(parts):
                totals.add_product(row, output, numbers, weight)

    num_lines = builder.sdiv(num_inputs, INT64(line))
    with cgutils.for_range(builder, num_lines, intp=INT64) as loop:
        start = builder.mul(loop.index, INT64(line))
        asked = builder.add(ahead, builder.mul(start, INT64(element.num_bytes)))
        for output in range(TILE_OUTPUTS):
            emit_prefetch(builder, builder.add(asked, builder.mul(INT64(output), weight_bytes)))
        for number in range(line_steps):
            add_step(builder.add(start, INT64(number * step)), None)
    for number in range(line_steps):
        start = builder.add(builder.mul(num_lines, INT64(line)), INT64(number * step))
        with builder.if_then(builder.icmp_signed("<", start, num_inputs)):
            add_step(start, builder.sub(num_inputs, start))
    for row in range(num_rows):
        sums = sum_four(builder, [totals.value(row, output) for output in range(TILE_OUTPUTS)])
        to = builder.add(out, builder.mul(INT64(row), out_bytes))
        _emit_result(builder, replace(path, lanes=TILE_OUTPUTS), element, sums, bias, to, num_outputs)


def _weight_at(builder: Any, weights: Any, weight_bytes: Any, output: int, num_outputs: Any) -> Any:
    """Where an output's weights are: those of the last output for one that does not exist."""
    is_there = builder.icmp_signed("<", INT64(output), num_outputs)
    number = builder.select(is_there, INT64(output), builder.sub(num_outputs, INT64(1)))
    return builder.add(weights, builder.mul(number, weight_bytes))


def _emit_result(builder: Any, path: VectorPath, element: Element, sums: Any, bias: Any, out: Any, count: Any) -> None:
    """Stores the sums, after the bias is added where there is one."""
    result = cgutils.alloca_once_value(builder, sums)
    builder.store(sums, result)
    with builder.if_then(builder.icmp_signed("!=", bias, INT64(0))):
        builder.store(builder.fadd(sums, emit_load(builder, path, element, bias, count)), result)
    emit_store(builder, path, element, out, builder.load(result), count)


@compiled
def multiply_rows(path: VectorPath, element: Element, job: Any) -> None:
    """One thread's share of the outputs."""
    width = element.num_bytes
    following = fetch_add(address_of(job), 1) * job.unit_outputs
    while following < job.num_outputs:
        first, following = following, fetch_add(address_of(job), 1) * job.unit_outputs
        end = min(first + job.unit_outputs, job.num_outputs)
        for output in range(first, end, TILE_OUTPUTS):
            bias = 0 if job.bias == 0 else job.bias + output * width
            ahead = job.weight + (output + TILE_OUTPUTS) * job.weight_bytes
            if output + TILE_OUTPUTS >= end:
                ahead = job.weight + following * job.weight_bytes
                if following >= job.num_outputs:
                    num_units = (job.num_outputs + job.unit_outputs - 1) // job.unit_outputs
                    ahead = job.next_weight + (following - num_units * job.unit_outputs) * job.weight_bytes
            for row in range(0, job.num_rows, TILE_ROWS):
                product_tile(
                    path,
                    element,
                    job.num_rows - row,
                    job.rows + row * job.row_bytes,
                    job.row_bytes,
                    job.weight + output * job.weight_bytes,
                    job.weight_bytes,
                    end - output,
                    job.num_inputs,
                    ahead,
                    bias,
                    job.out + row * job.out_bytes + output * width,
                    job.out_bytes,
                )


@cache
def linear_kernel(path: VectorPath, element: Element) -> int:
    """Address of the C function; its argument is a `LINEAR_JOB`."""
    tile, outputs = tile_rows(path), panel_outputs(path)

    def linear(job: Any) -> None:
        multiply_rows(path, element, job)

    def linear_of_many(job: Any) -> None:
        if job.num_rows > FEW_ROWS:
            multiply_wide(path, tile, outputs, job)
        else:
            multiply_rows(path, element, job)

    widens = element == BFLOAT16
    return kernel_address(JobType("LinearJob", LINEAR_JOB), linear_of_many if widens else linear)
