"""Products of bfloat16 matrices in blocks of 32 x 32, and the packing that they want.

    product_block     c[32 rows][32 columns] (float32) += a[32 rows][k] (bfloat16) * b[k][32 columns]

`b` is **packed**: of each 16 columns, pairs of rows lie side by side, `[k / 2][16 columns][2]`, 64 bytes a pair. AMX
tiles and `vdpbf16ps` both take it so. Packing keys is a transposition of pairs, packing values an interleaving.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    FLOAT,
    INT16,
    INT32,
    INT64,
    BFloatType,
    broadcast,
    call,
    constant,
    first_lanes,
    pointer,
    raw_load,
    raw_store,
    vector_of,
)
from octavo.attention.numba_vectors import primitive

BLOCK = 32
"""Rows and columns of a block of a product."""
STEP = 32
"""Numbers of the inner dimension that are multiplied at a time."""
COLUMNS = 16
"""Columns that are packed together."""
PAIR_BYTES = 4 * COLUMNS
"""Bytes of a pair of rows of packed columns."""


def _pairs(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, vector_of(BFloatType(), 2 * bits.type.count))


@primitive
def product_block(
    typing_context: Any,
    path: Any,
    a: Any,
    a_bytes: Any,
    b: Any,
    b_bytes: Any,
    num_steps: Any,
    c: Any,
    c_bytes: Any,
    keeps: Any,
) -> Any:
    """Adds the product of `num_steps` steps to a block, or sets the block to it where `keeps` is 0.

    Addresses of the first row of `a`, of the packed `b` and of `c`; rows of `a` and `c` are `a_bytes` and `c_bytes`
    apart, the second 16 columns of `b` lie `b_bytes` behind the first.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_block = _emit_tiles if path.value.has_tiles else _emit_pairs
        emit_block(builder, *arguments[1:])
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 8), emit


def _emit_tiles(
    builder: Any, a: Any, a_bytes: Any, b: Any, b_bytes: Any, num_steps: Any, c: Any, c_bytes: Any, keeps: Any
) -> None:
    """AMX: tiles 0 to 3 are the block's quarters, 4 and 5 halves of rows, 6 and 7 halves of columns."""

    def tile(name: str, number: int, *rest: Any) -> None:
        call(builder, f"llvm.x86.{name}", ir.VoidType(), [ir.IntType(8)(number), *rest])

    def quarter(number: int) -> Any:
        row = builder.mul(c_bytes, INT64(16 * (number // 2)))
        return pointer(builder, builder.add(builder.add(c, row), INT64(64 * (number % 2))))

    with builder.if_else(builder.icmp_signed("==", keeps, INT64(0))) as (anew, more):
        with anew:
            for number in range(4):
                tile("tilezero", number)
        with more:
            for number in range(4):
                tile("tileloadd64", number, quarter(number), c_bytes)
    lower = builder.add(a, builder.mul(a_bytes, INT64(16)))
    right = builder.add(b, b_bytes)
    with cgutils.for_range(builder, num_steps, intp=INT64) as loop:
        a_at, b_at = (builder.mul(loop.index, INT64(2 * STEP)), builder.mul(loop.index, INT64(STEP // 2 * PAIR_BYTES)))
        for number, rows in ((4, a), (5, lower)):
            tile("tileloadd64", number, pointer(builder, builder.add(rows, a_at)), a_bytes)
        for number, columns in ((6, b), (7, right)):
            tile("tileloadd64", number, pointer(builder, builder.add(columns, b_at)), INT64(PAIR_BYTES))
        for number in range(4):
            tile("tdpbf16ps", number, ir.IntType(8)(4 + number // 2), ir.IntType(8)(6 + number % 2))
    for number in range(4):
        tile("tilestored64", number, quarter(number), c_bytes)


def _emit_pairs(
    builder: Any, a: Any, a_bytes: Any, b: Any, b_bytes: Any, num_steps: Any, c: Any, c_bytes: Any, keeps: Any
) -> None:
    """`vdpbf16ps`: eight rows of two vectors at a time."""
    rows, right = 8, builder.add(b, b_bytes)
    kind = vector_of(FLOAT, COLUMNS)
    cells = [[cgutils.alloca_once(builder, kind) for _ in range(2)] for _ in range(rows)]
    is_new = builder.icmp_signed("==", keeps, INT64(0))
    with cgutils.for_range(builder, INT64(BLOCK // rows), intp=INT64) as group:
        a_at = builder.add(a, builder.mul(a_bytes, builder.mul(group.index, INT64(rows))))
        c_at = builder.add(c, builder.mul(c_bytes, builder.mul(group.index, INT64(rows))))
        places = [
            [builder.add(builder.add(c_at, builder.mul(c_bytes, INT64(row))), INT64(64 * half)) for half in range(2)]
            for row in range(rows)
        ]
        for row in range(rows):
            for half in range(2):
                before = raw_load(builder, FLOAT, COLUMNS, places[row][half], None)
                builder.store(builder.select(is_new, constant(FLOAT, COLUMNS, 0.0), before), cells[row][half])
        with cgutils.for_range(builder, builder.mul(num_steps, INT64(STEP // 2)), intp=INT64) as loop:
            columns = [
                _pairs(
                    builder,
                    raw_load(
                        builder, INT32, COLUMNS, builder.add(at, builder.mul(loop.index, INT64(PAIR_BYTES))), None
                    ),
                )
                for at in (b, right)
            ]
            for row in range(rows):
                line = builder.add(
                    builder.add(a_at, builder.mul(a_bytes, INT64(row))), builder.mul(loop.index, INT64(4))
                )
                pair = builder.load(pointer(builder, line), typ=INT32, align=4)
                left = _pairs(builder, broadcast(builder, pair, COLUMNS))
                for half in range(2):
                    total = builder.load(cells[row][half])
                    total = call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", kind, [total, left, columns[half]])
                    builder.store(total, cells[row][half])
        for row in range(rows):
            for half in range(2):
                raw_store(builder, builder.load(cells[row][half]), places[row][half], None)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """A square of 16 x 16 int32, rows made columns: pairs of lanes, then of pairs, of quarters, of halves."""

    def shuffled(a: Any, b: Any, numbers: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(vector_of(INT32, 16), numbers))

    def within(width: int, upper: int) -> list[int]:
        """Lanes that interleave the lower or upper halves of each four lanes, `width` lanes at a time."""
        four = range(2 * upper, 2 * upper + 2, width)
        return [
            base + lane + offset + source * 16
            for base in range(0, 16, 4)
            for lane in four
            for source in (0, 1)
            for offset in range(width)
        ]

    for distance, width in ((1, 1), (2, 2)):
        done = list(rows)
        for row in range(16):
            if row & distance == 0:
                done[row] = shuffled(rows[row], rows[row + distance], within(width, 0))
                done[row + distance] = shuffled(rows[row], rows[row + distance], within(width, 1))
        rows = done
    # Row 4q + r now holds, in quarter k, column 4k + (r with its two bits swapped) of the rows 4q to 4q + 3.
    columns = []
    for column in range(16):
        quarter, rest = column // 4, column % 4
        place = (rest & 1) * 2 + (rest >> 1)
        parts = [rows[4 * q + place] for q in range(4)]
        lanes = list(range(4 * quarter, 4 * quarter + 4))
        low = shuffled(parts[0], parts[1], [*lanes, *[16 + lane for lane in lanes]] * 2)
        high = shuffled(parts[2], parts[3], [*lanes, *[16 + lane for lane in lanes]] * 2)
        columns.append(shuffled(low, high, [*range(8), *range(16, 24)]))
    return columns


@primitive
def pack_keys(typing_context: Any, path: Any, listed: Any, offset: Any, size: Any, to: Any) -> Any:
    """Packs 16 keys as 16 columns: `size` bfloat16 at each of the 16 listed addresses, `offset` added.

    The inner dimension is filled up to whole steps with zeros.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, addresses, shift, length, target = arguments
        places = [
            builder.add(
                builder.load(builder.gep(pointer(builder, addresses), [INT64(i)], source_etype=INT64), typ=INT64), shift
            )
            for i in range(COLUMNS)
        ]

        def pack_step(step: Any, some: Any) -> None:
            mask = None if some is None else first_lanes(builder, 32, some)
            at = builder.mul(step, INT64(2 * STEP))
            rows = [
                builder.bitcast(raw_load(builder, INT16, 32, builder.add(place, at), mask), vector_of(INT32, 16))
                for place in places
            ]
            start = builder.add(target, builder.mul(step, INT64(STEP // 2 * PAIR_BYTES)))
            for number, column in enumerate(_transposed(builder, rows)):
                raw_store(builder, column, builder.add(start, INT64(PAIR_BYTES * number)), None)

        whole = builder.sdiv(length, INT64(STEP))
        with cgutils.for_range(builder, whole, intp=INT64) as loop:
            pack_step(loop.index, None)
        rest = builder.sub(length, builder.mul(whole, INT64(STEP)))
        with builder.if_then(builder.icmp_signed(">", rest, INT64(0))):
            pack_step(whole, rest)
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 4), emit


@primitive
def pack_pair(typing_context: Any, path: Any, first: Any, second: Any, size: Any, to: Any, column_bytes: Any) -> Any:
    """Packs two values as a pair of rows: `size` bfloat16 each, every 16 columns `column_bytes` behind the last.

    Columns are filled up to 16 with zeros.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, low, high, length, target, stride = arguments

        def pack_columns(number: Any, some: Any) -> None:
            mask = None if some is None else first_lanes(builder, COLUMNS, some)
            at = builder.mul(number, INT64(2 * COLUMNS))
            kind = vector_of(INT32, COLUMNS)
            lower, upper = (
                builder.zext(raw_load(builder, INT16, COLUMNS, builder.add(row, at), mask), kind) for row in (low, high)
            )
            pair = builder.or_(lower, builder.shl(upper, constant(INT32, COLUMNS, 16)))
            raw_store(builder, pair, builder.add(target, builder.mul(number, stride)), None)

        whole = builder.sdiv(length, INT64(COLUMNS))
        with cgutils.for_range(builder, whole, intp=INT64) as loop:
            pack_columns(loop.index, None)
        rest = builder.sub(length, builder.mul(whole, INT64(COLUMNS)))
        with builder.if_then(builder.icmp_signed(">", rest, INT64(0))):
            pack_columns(whole, rest)
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 5), emit


@primitive
def begin_tiles(typing_context: Any, path: Any, scratch: Any) -> Any:
    """Makes the CPU's tiles 16 rows of 64 bytes; writes that to the 64 bytes at `scratch`. Nothing without tiles."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if path.value.has_tiles:
            shape = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
            kind = vector_of(ir.IntType(8), 64)
            builder.store(ir.Constant(kind, shape), pointer(builder, arguments[1]), align=1)
            call(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [pointer(builder, arguments[1])])
        return context.get_dummy_value()

    return types.none(path, types.int64), emit


@primitive
def end_tiles(typing_context: Any, path: Any) -> Any:
    """Gives the CPU's tiles back."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if path.value.has_tiles:
            call(builder, "llvm.x86.tilerelease", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.none(path), emit
