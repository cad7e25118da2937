"""Products of many rows with a weight [outputs, inputs] of bfloat16 that lies row by row, in float32 arithmetic.

For CPUs without instructions for bfloat16. A thread widens what it multiplies into memory of its own, once for many
products: a block of rows as they lie, and a panel of outputs in the order of inputs.

    panel     input -> output of the panel         two vectors an input
    tile      `TILE_ROWS` rows by a panel          each step loads the panel's two vectors, and a number of each row

Nothing is summed across lanes, and the sum of a row and an output is taken in the order of inputs, whatever else is in
the tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    BFLOAT16,
    FLOAT,
    INT16,
    INT32,
    INT64,
    LINE,
    VectorPath,
    broadcast,
    constant,
    emit_load,
    emit_prefetch,
    emit_store,
    first_lanes,
    pointer,
    raw_load,
    raw_store,
    vector_of,
)
from octavo.attention.numba_tiles import Accumulators
from octavo.attention.numba_vectors import address_of, compiled, fetch_add, primitive

VECTORS = 2
"""Vectors of outputs of a panel."""
REST_ROWS = 4
"""Rows of the tiles that take what whole tiles leave over."""


def tile_rows(path: VectorPath) -> int:
    """Rows of a tile: as many as have their sums in registers."""
    return 12 if path.lanes >= 16 else 4


def panel_outputs(path: VectorPath) -> int:
    """Outputs of a panel."""
    return VECTORS * path.lanes


def _columns(builder: Any, vectors: list[Any]) -> list[Any]:
    """The columns of a square of lanes, by perfect shuffles."""
    lanes = len(vectors)
    low = [number for pair in range(lanes // 2) for number in (pair, lanes + pair)]
    high = [number + lanes // 2 for number in low]
    patterns = [ir.Constant(vector_of(INT32, lanes), pattern) for pattern in (low, high)]
    for _ in range(lanes.bit_length() - 1):
        halves = zip(vectors[: lanes // 2], vectors[lanes // 2 :], strict=True)
        vectors = [builder.shuffle_vector(a, b, pattern) for a, b in halves for pattern in patterns]
    return vectors


@primitive
def widen_panel(
    typing_context: Any,
    path: Any,
    weights: Any,
    weight_bytes: Any,
    num_outputs: Any,
    num_inputs: Any,
    panel: Any,
    ahead: Any,
) -> Any:
    """Writes the panel of the outputs at `weights`, of which `num_outputs` exist; others are copies of the last.

    The input behind the last one, where the number of inputs is odd, is 0. As much as is read is asked for at `ahead`.
    """
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, weight_bytes, num_outputs, num_inputs, panel, ahead = arguments[1:]
        step = INT64(2 * vectors.lanes)
        num_whole = builder.sdiv(num_inputs, step)
        last = builder.sub(num_outputs, INT64(1))
        rows = []
        for number in range(VECTORS * vectors.lanes):
            is_there = builder.icmp_signed("<", INT64(number), num_outputs)
            rows.append(builder.mul(builder.select(is_there, INT64(number), last), weight_bytes))

        def emit_squares(number: Any, some: Any) -> None:
            start = builder.mul(number, step)
            along = builder.mul(start, INT64(2))
            bases = [builder.add(base, along) for base in (weights, ahead)]
            place = builder.add(panel, builder.mul(start, INT64(4 * VECTORS * vectors.lanes)))
            for first in range(0, len(rows), vectors.lanes):
                to = builder.add(place, INT64(4 * first))
                _emit_square(builder, vectors, bases, rows[first : first + vectors.lanes], some, to)

        with cgutils.for_range(builder, num_whole, intp=INT64) as loop:
            emit_squares(loop.index, None)
        rest = builder.sub(num_inputs, builder.mul(num_whole, step))
        with builder.if_then(builder.icmp_signed(">", rest, INT64(0))):
            emit_squares(num_whole, rest)
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 6), emit


def _emit_square(builder: Any, path: VectorPath, bases: list[Any], rows: list[Any], some: Any, to: Any) -> None:
    """Widens `2 * lanes` inputs, or the first `some`, of `lanes` outputs.

    Their weights begin `rows` behind the first of `bases`; as much is asked for behind the second.
    """
    lanes = path.lanes
    mask = None if some is None else first_lanes(builder, 2 * lanes, some)
    pairs = []
    for row in rows:
        emit_prefetch(builder, builder.add(bases[1], row))
        bits = raw_load(builder, INT16, 2 * lanes, builder.add(bases[0], row), mask)
        pairs.append(builder.bitcast(bits, vector_of(INT32, lanes)))
    pair_bytes = 2 * 4 * VECTORS * lanes
    for number, column in enumerate(_columns(builder, pairs)):
        halves = (
            builder.shl(column, constant(INT32, lanes, 16)),
            builder.and_(column, constant(INT32, lanes, -(1 << 16))),
        )

        def put(number: int = number, halves: Any = halves) -> None:
            for half, bits in enumerate(halves):
                at = builder.add(to, INT64(pair_bytes * number + half * pair_bytes // 2))
                raw_store(builder, builder.bitcast(bits, vector_of(FLOAT, lanes)), at, None)

        if some is None:
            put()
        else:
            with builder.if_then(builder.icmp_signed("<", INT64(2 * number), some)):
                put()


@primitive
def widen_row(typing_context: Any, path: Any, row: Any, count: Any, padded: Any, to: Any) -> Any:
    """Writes the first `count` numbers of a row as float32, and zeros up to `padded`, a multiple of the lanes."""
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, count, padded, to = arguments[1:]
        lanes = INT64(vectors.lanes)
        num_whole = builder.sdiv(count, lanes)

        def part(number: Any, some: Any) -> None:
            start = builder.mul(number, lanes)
            numbers = emit_load(builder, vectors, BFLOAT16, builder.add(row, builder.mul(start, INT64(2))), some)
            raw_store(builder, numbers, builder.add(to, builder.mul(start, INT64(4))), None)

        with cgutils.for_range(builder, num_whole, intp=INT64) as loop:
            part(loop.index, None)
        with builder.if_then(builder.icmp_signed("<", builder.mul(num_whole, lanes), padded)):
            part(num_whole, builder.sub(count, builder.mul(num_whole, lanes)))
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 4), emit


@primitive
def wide_tile(
    typing_context: Any,
    path: Any,
    is_rest: Any,
    rows: Any,
    row_bytes: Any,
    panel: Any,
    num_inputs: Any,
    num_rows: Any,
    num_outputs: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Results of a tile of widened rows with a panel: `REST_ROWS` rows where `is_rest` is not 0, else a whole tile's.

    The first `num_rows` and `num_outputs` of them are written.
    """
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        with builder.if_else(builder.icmp_signed("==", arguments[1], INT64(0))) as (whole, rest):
            with whole:
                _emit_tile(builder, vectors, tile_rows(vectors), arguments[2:])
            with rest:
                _emit_tile(builder, vectors, REST_ROWS, arguments[2:])
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 10), emit


def _emit_tile(builder: Any, path: VectorPath, size: int, arguments: Any) -> None:
    rows, row_bytes, panel, num_inputs, num_rows, num_outputs, bias, out, out_bytes = arguments
    lanes = path.lanes
    row_at = [builder.add(rows, builder.mul(INT64(row), row_bytes)) for row in range(size)]
    totals = Accumulators(builder, path, size, VECTORS)
    with cgutils.for_range(builder, num_inputs, intp=INT64) as loop:
        place = builder.add(panel, builder.mul(loop.index, INT64(4 * VECTORS * lanes)))
        weights = [
            raw_load(builder, FLOAT, lanes, builder.add(place, INT64(4 * lanes * v)), None) for v in range(VECTORS)
        ]
        offset = builder.mul(loop.index, INT64(4))
        for row, at in enumerate(row_at):
            number = builder.load(pointer(builder, builder.add(at, offset)), typ=FLOAT, align=4)
            for v, weight in enumerate(weights):
                totals.add_product(row, v, broadcast(builder, number, lanes), weight)
    added = [cgutils.alloca_once_value(builder, constant(FLOAT, lanes, 0.0)) for _ in range(VECTORS)]
    for v, cell in enumerate(added):
        builder.store(constant(FLOAT, lanes, 0.0), cell)
        with builder.if_then(builder.icmp_signed("!=", bias, INT64(0))):
            count = builder.sub(num_outputs, INT64(v * lanes))
            builder.store(emit_load(builder, path, BFLOAT16, builder.add(bias, INT64(2 * v * lanes)), count), cell)
    is_whole = builder.icmp_signed(">=", num_outputs, INT64(VECTORS * lanes))
    for row in range(size):
        to = builder.add(out, builder.mul(INT64(row), out_bytes))
        with builder.if_then(builder.icmp_signed("<", INT64(row), num_rows)):
            for v, cell in enumerate(added):
                at = builder.add(to, INT64(2 * v * lanes))
                result = builder.fadd(totals.value(row, v), builder.load(cell))
                with builder.if_else(is_whole) as (whole, part):
                    with whole:
                        emit_store(builder, path, BFLOAT16, at, result, None)
                    with part:
                        count = builder.sub(num_outputs, INT64(v * lanes))
                        emit_store(builder, path, BFLOAT16, at, result, count)


@compiled
def multiply_block(path: VectorPath, tile: int, job: Any, first: int, output: int, rows: int, panel: int) -> None:
    """Results of the widened block of rows that begins with row `first`, with the panel of `output`."""
    widened_bytes = 4 * ((job.num_inputs + path.lanes - 1) // path.lanes * path.lanes)
    count = min(job.num_rows - first, job.block_rows)
    row = 0
    while row < count:
        is_rest = 1 if count - row < tile else 0
        wide_tile(
            path,
            is_rest,
            rows + row * widened_bytes,
            widened_bytes,
            panel,
            job.num_inputs,
            count - row,
            job.num_outputs - output,
            0 if job.bias == 0 else job.bias + 2 * output,
            job.out + (first + row) * job.out_bytes + 2 * output,
            job.out_bytes,
        )
        row += REST_ROWS if is_rest != 0 else tile


@compiled
def multiply_wide(path: VectorPath, tile: int, outputs: int, job: Any) -> None:
    """One thread's share of the panels of a `LINEAR_JOB`, block of rows by block of rows.

    `tile` and `outputs` are those of `tile_rows` and `panel_outputs`.
    """
    padded = (job.num_inputs + path.lanes - 1) // path.lanes * path.lanes
    most = min(job.block_rows, (job.num_rows + REST_ROWS - 1) // REST_ROWS * REST_ROWS)
    panel_numbers = (job.num_inputs + job.num_inputs % 2) * outputs
    scratch = np.empty(most * padded + panel_numbers + LINE, np.float32)
    panel = (scratch.ctypes.data + LINE - 1) // LINE * LINE
    rows = panel + 4 * panel_numbers
    num_panels = (job.num_outputs + outputs - 1) // outputs
    num_units = num_panels * ((job.num_rows + job.block_rows - 1) // job.block_rows)
    widened = -1
    following = fetch_add(address_of(job), 1)
    while following < num_units:
        unit, following = following, fetch_add(address_of(job), 1)
        first, output = unit // num_panels * job.block_rows, unit % num_panels * outputs
        if first != widened:
            widened = first
            for row in range(min(job.num_rows - first, job.block_rows)):
                widen_row(
                    path, job.rows + (first + row) * job.row_bytes, job.num_inputs, padded, rows + row * padded * 4
                )
        ahead = job.weight + following % num_panels * outputs * job.weight_bytes
        weight = job.weight + output * job.weight_bytes
        widen_panel(path, weight, job.weight_bytes, job.num_outputs - output, job.num_inputs, panel, ahead)
        multiply_block(path, tile, job, first, output, rows, panel)
    scratch[0] = 0  # numba frees an array after its last use: not before here
