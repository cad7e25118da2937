"""Products with a bfloat16 weight in the order that oneDNN packs it into for CPUs that multiply pairs.

    block of outputs -> pair of inputs -> output of the block -> the two inputs

One vector of 32-bit lanes is a pair of inputs for as many outputs; a row's pair goes to all lanes. Nothing is summed
across lanes, and a block is read from one end to the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import typeof_impl

from octavo.attention.numba_emit import (
    BFLOAT16,
    FLOAT,
    INT32,
    INT64,
    LINE,
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
from octavo.attention.numba_vectors import Static, address_of, compiled, fetch_add, primitive
from octavo.models.modules.linear_kernels import ROWS_FIELDS
from octavo.models.modules.row_kernels import kernel_address

BLOCK_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            *ROWS_FIELDS,
            "weight",
            "block_outputs",
            "block_bytes",
            "bias",
            "num_outputs",
            "num_inputs",
            "unit_rows",
            "next_weight",
        )
    ]
)
"""out[i, j] = rows[i] . weight[j] + bias[j]. `block_outputs` is a multiple of `GRANULE`, `num_inputs` even;
`block_bytes` from one block to the next; `bias` is 0 where there is none. `unit_rows` rows are multiplied at a time.
`next_weight` is the weight of the product that comes next, or 0."""

GRANULE = 16
"""Outputs that lie side by side for each pair of inputs: what tiles are made of."""
FEW_TILES = 3
"""Up to so many tiles of rows, the first of them asks for all of the next unit's weights; else each for a part."""
_MOST_AHEAD = 1 << 18
_NEAR = 1 << 14
"""A block of more bytes than the first does not wait in a core's cache for its turn: so far ahead is asked for then."""


@dataclass(frozen=True)
class BlockTile:
    """A tile: most rows, as many as have their sums in registers, by all granules of a block."""

    rows: int
    columns: int


@typeof_impl.register(BlockTile)  # type: ignore[untyped-decorator]
def _type_of_tile(value: Any, context: Any) -> Static:
    return Static(value)


def block_tile(path: VectorPath, block_outputs: int) -> BlockTile:
    """The tile for blocks of so many outputs."""
    columns = block_outputs // GRANULE
    if path.lanes < GRANULE:
        return BlockTile(1, columns)
    return BlockTile(8 if columns < 4 else 6, columns)


@primitive
def pair_tile(
    typing_context: Any,
    path: Any,
    tile: Any,
    num_rows: Any,
    rows: Any,
    row_bytes: Any,
    weights: Any,
    pair_bytes: Any,
    num_inputs: Any,
    num_outputs: Any,
    ahead: Any,
    lines_ahead: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Results of `num_rows` (at least 1, at most `tile_rows`) rows and `columns` granules, of which
    the first `num_outputs` outputs are written. `pair_bytes` from one pair of inputs to the next. `lines_ahead` cache
    lines a pair are asked for from `ahead` on: none, one, or `columns`."""
    vectors, most, columns = path.value, tile.value.rows, tile.value.columns

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for number in range(most, 0, -1):
            with builder.if_then(builder.icmp_signed("==", arguments[2], INT64(number))):
                is_first = builder.icmp_signed(">", arguments[10], INT64(1))
                with builder.if_else(is_first) as (first, other):
                    with first:
                        _emit_tile(builder, vectors, (number, columns, columns), arguments[3:])
                    with other:
                        _emit_tile(builder, vectors, (number, columns, 1), arguments[3:])
        return context.get_dummy_value()

    return types.none(path, tile, *[types.int64] * 12), emit


def _emit_tile(builder: Any, path: VectorPath, size: tuple[int, int, int], arguments: Any) -> None:
    rows, row_bytes, weights, pair_bytes, num_inputs, num_outputs, ahead, _, bias, out, out_bytes = arguments
    num_rows, columns, lines = size
    lanes = path.lanes
    num_vectors = columns * GRANULE // lanes
    row_at = [builder.add(rows, builder.mul(INT64(row), row_bytes)) for row in range(num_rows)]
    totals = Accumulators(builder, path, num_rows, num_vectors)
    with cgutils.for_range(builder, builder.sdiv(num_inputs, INT64(2)), intp=INT64) as loop:
        place = builder.add(weights, builder.mul(loop.index, pair_bytes))
        asked = builder.add(ahead, builder.mul(loop.index, INT64(LINE * lines)))
        for line in range(lines):
            emit_prefetch(builder, builder.add(asked, INT64(LINE * line)))
        offset = builder.mul(loop.index, INT64(4))
        bits = [
            raw_load(builder, INT32, lanes, builder.add(place, INT64(4 * lanes * column)), None)
            for column in range(num_vectors)
        ]
        for row, at in enumerate(row_at):
            pair = broadcast(
                builder, builder.load(pointer(builder, builder.add(at, offset)), typ=INT32, align=2), lanes
            )
            for column in range(num_vectors):
                _add_pairs(builder, path, totals, (row, column), bits[column], pair)
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
def multiply_unit(
    path: VectorPath, shape: BlockTile, most: int, columns: int, job: Any, first: int, block: int, ahead: int
) -> None:
    """Results of up to `unit_rows` rows from row `first` on with one block, in tiles of at most `most` rows.

    Tiles are of nearly one size: small ones leave multipliers idle.
    """
    count = min(job.num_rows - first, job.unit_rows)
    num_tiles = (count + most - 1) // most
    output = block * job.block_outputs
    weights = job.weight + block * job.block_bytes
    row = first
    for tile in range(num_tiles):
        rows = (count - (row - first)) // (num_tiles - tile)
        asked, lines = weights, 1  # which are at hand: nothing is asked for
        if num_tiles <= FEW_TILES:
            if tile == 0:
                asked, lines = ahead, columns
        elif tile < columns:
            asked = ahead + tile * job.num_inputs // 2 * LINE
        pair_tile(
            path,
            shape,
            rows,
            job.rows + row * job.row_bytes,
            job.row_bytes,
            weights,
            4 * job.block_outputs,
            job.num_inputs,
            job.num_outputs - output,
            asked,
            lines,
            0 if job.bias == 0 else job.bias + 2 * output,
            job.out + row * job.out_bytes + 2 * output,
            job.out_bytes,
        )
        row += rows


@compiled
def multiply_by_blocks(path: VectorPath, shape: BlockTile, most: int, columns: int, job: Any) -> None:
    """One thread's share of the blocks, for `unit_rows` rows at a time."""
    num_blocks = (job.num_outputs + job.block_outputs - 1) // job.block_outputs
    num_units = num_blocks * ((job.num_rows + job.unit_rows - 1) // job.unit_rows)
    following = fetch_add(address_of(job), 1)
    while following < num_units:
        unit, following = following, fetch_add(address_of(job), 1)
        ahead = job.weight + following % num_blocks * job.block_bytes
        if job.block_bytes > _MOST_AHEAD:
            ahead = job.weight + unit % num_blocks * job.block_bytes + _NEAR
        elif following >= num_units:
            ahead = job.next_weight + (following - num_units) * job.block_bytes
        multiply_unit(path, shape, most, columns, job, unit // num_blocks * job.unit_rows, unit % num_blocks, ahead)


@cache
def block_kernel(path: VectorPath, block_outputs: int) -> int:
    """Address of the C function for blocks of so many outputs; its argument is a `BLOCK_JOB`."""
    shape = block_tile(path, block_outputs)
    most, columns = shape.rows, shape.columns

    def block(job: Any) -> None:
        multiply_by_blocks(path, shape, most, columns, job)

    return kernel_address(JobType("BlockJob", BLOCK_JOB), block)
