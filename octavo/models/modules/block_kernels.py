"""Products of a few rows with a bfloat16 weight in the order that oneDNN packs it into for CPUs that multiply pairs.

    block of outputs -> pair of inputs -> output of the block -> the two inputs

One vector of 32-bit lanes is a pair of inputs for as many outputs; a row's pair goes to all lanes. Nothing is summed
across lanes, and a block is read from one end to the other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    BFLOAT16,
    FLOAT,
    INT32,
    INT64,
    BFloatType,
    VectorPath,
    broadcast,
    constant,
    emit_load,
    emit_prefetch,
    emit_store,
    pointer,
    raw_load,
    vector_of,
)
from octavo.attention.numba_memory import JobType
from octavo.attention.numba_tiles import Accumulators
from octavo.attention.numba_vectors import address_of, compiled, fetch_add, primitive
from octavo.models.modules.linear_kernels import ROWS_FIELDS
from octavo.models.modules.row_kernels import kernel_address

BLOCK_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (*ROWS_FIELDS, "weight", "block_outputs", "block_bytes", "bias", "num_outputs", "num_inputs")
    ]
)
"""out[i, j] = rows[i] . weight[j] + bias[j]. `block_outputs` is a multiple of `GRANULE`, `num_inputs` even;
`block_bytes` from one block to the next; `bias` is 0 where there is none."""

GRANULE = 16
"""Outputs of a unit of work: a part of a block."""
TILE_ROWS = 4
_AHEAD = 16
"""How many pairs before its turn a part of a block is asked for."""


@primitive
def pair_tile(
    typing_context: Any,
    path: Any,
    num_rows: Any,
    rows: Any,
    row_bytes: Any,
    weights: Any,
    pair_bytes: Any,
    num_inputs: Any,
    num_outputs: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Results of `num_rows` (at least 1; more than `TILE_ROWS` count as that many) rows and `GRANULE` outputs, of which
    the first `num_outputs` are written. `pair_bytes` from one pair of inputs to the next."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for count in range(TILE_ROWS, 0, -1):
            matches = "==" if count < TILE_ROWS else ">="
            with builder.if_then(builder.icmp_signed(matches, arguments[1], INT64(count))):
                _emit_tile(builder, path.value, count, arguments[2:])
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 10), emit


def _emit_tile(builder: Any, path: VectorPath, num_rows: int, arguments: Any) -> None:
    rows, row_bytes, weights, pair_bytes, num_inputs, num_outputs, bias, out, out_bytes = arguments
    lanes = path.lanes
    num_vectors = GRANULE // lanes
    row_at = [builder.add(rows, builder.mul(INT64(row), row_bytes)) for row in range(num_rows)]
    totals = Accumulators(builder, path, num_rows, num_vectors)
    with cgutils.for_range(builder, builder.sdiv(num_inputs, INT64(2)), intp=INT64) as loop:
        place = builder.add(weights, builder.mul(loop.index, pair_bytes))
        emit_prefetch(builder, builder.add(place, builder.mul(pair_bytes, INT64(_AHEAD))))
        offset = builder.mul(loop.index, INT64(4))
        pairs = [builder.load(pointer(builder, builder.add(at, offset)), typ=INT32, align=2) for at in row_at]
        for column in range(num_vectors):
            bits = raw_load(builder, INT32, lanes, builder.add(place, INT64(4 * lanes * column)), None)
            for row, pair in enumerate(pairs):
                _add_pairs(builder, path, totals, (row, column), bits, broadcast(builder, pair, lanes))
    for row in range(num_rows):
        to = builder.add(out, builder.mul(INT64(row), out_bytes))
        for column in range(num_vectors):
            start = column * lanes
            count = builder.sub(num_outputs, INT64(start))
            with builder.if_then(builder.icmp_signed(">", count, INT64(0))):
                result = cgutils.alloca_once(builder, vector_of(FLOAT, lanes))
                builder.store(totals.value(row, column), result)
                with builder.if_then(builder.icmp_signed("!=", bias, INT64(0))):
                    added = emit_load(builder, path, BFLOAT16, builder.add(bias, INT64(2 * start)), count)
                    builder.store(builder.fadd(builder.load(result), added), result)
                emit_store(builder, path, BFLOAT16, builder.add(to, INT64(2 * start)), builder.load(result), count)


def _add_pairs(
    builder: Any, path: VectorPath, totals: Accumulators, cell: tuple[int, int], weights: Any, pairs: Any
) -> None:
    """Adds both products of every lane's pairs."""
    row, column = cell
    lanes = path.lanes
    if path.has_dot:
        kind = vector_of(BFloatType(), 2 * lanes)
        totals.add_product(row, column, builder.bitcast(pairs, kind), builder.bitcast(weights, kind))
        return
    floats = vector_of(FLOAT, lanes)
    for part in (_low_half, _high_half):
        low_or_high = [builder.bitcast(part(builder, bits, lanes), floats) for bits in (weights, pairs)]
        totals.add_product(row, column, *low_or_high)


def _low_half(builder: Any, bits: Any, lanes: int) -> Any:
    return builder.shl(bits, constant(INT32, lanes, 16))


def _high_half(builder: Any, bits: Any, lanes: int) -> Any:
    return builder.and_(bits, ir.Constant(vector_of(INT32, lanes), [-(1 << 16)] * lanes))


@compiled
def multiply_by_blocks(path: VectorPath, job: Any) -> None:
    """One thread's share of the outputs."""
    pair_bytes = 4 * job.block_outputs
    while True:
        output = fetch_add(address_of(job), 1) * GRANULE
        if output >= job.num_outputs:
            return
        block, inside = output // job.block_outputs, output % job.block_outputs
        bias = 0 if job.bias == 0 else job.bias + 2 * output
        for row in range(0, job.num_rows, TILE_ROWS):
            pair_tile(
                path,
                job.num_rows - row,
                job.rows + row * job.row_bytes,
                job.row_bytes,
                job.weight + block * job.block_bytes + 4 * inside,
                pair_bytes,
                job.num_inputs,
                job.num_outputs - output,
                bias,
                job.out + row * job.out_bytes + 2 * output,
                job.out_bytes,
            )


@cache
def block_kernel(path: VectorPath) -> int:
    """Address of the C function; its argument is a `BLOCK_JOB`."""

    def block(job: Any) -> None:
        multiply_by_blocks(path, job)

    return kernel_address(JobType("BlockJob", BLOCK_JOB), block)
