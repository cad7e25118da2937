"""The two products of attention as register tiles: a few rows (queries) by a few tokens or columns at a time.

    score_tile        out[row, token] = sum over d of row[d] * key(token)[d]
    accumulate_tile   out[row, d] = out[row, d] * keep[row] + take[row] * sum over tokens of weight[row, token] * V[d]

Rows and tokens of a tile are unrolled here, in Python, while the code is emitted; loops over the head's size and over
tokens are loops of the machine code. The sum of one row and token does not depend on the tile's other rows and tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    BFLOAT16,
    FLOAT,
    FLOAT32,
    INT16,
    INT32,
    INT64,
    LINE,
    BFloatType,
    Element,
    VectorPath,
    broadcast,
    call,
    constant,
    emit_fma,
    emit_load,
    emit_prefetch,
    first_lanes,
    lanes_from,
    pointer,
    raw_load,
    raw_store,
    vector_of,
)
from octavo.attention.numba_vectors import primitive

TILE_ROWS = 4
"""Most rows of a tile."""
TILE_TOKENS = 4
"""Tokens of a score tile."""
TILE_VECTORS = 4
"""Vectors of columns of a value tile."""


def uses_dot(path: VectorPath, row_element: Element, element: Element) -> bool:
    """Whether rows and keys are multiplied as pairs of bfloat16."""
    return path.has_dot and row_element == element == BFLOAT16


def load_pairs(builder: Any, path: VectorPath, address: Any, count: Any) -> Any:
    """Twice `path.lanes` bfloat16, of which only the first `count` are touched where that is not None."""
    lanes = 2 * path.lanes
    mask = None if count is None else first_lanes(builder, lanes, count)
    return builder.bitcast(raw_load(builder, INT16, lanes, address, mask), vector_of(BFloatType(), lanes))


def _multiply_add(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """total + a * b; for pairs of bfloat16 both products of a lane are added to it."""
    if a.type == total.type:
        return emit_fma(builder, a, b, total)
    bits = total.type.count * 32
    return call(builder, f"llvm.x86.avx512bf16.dpbf16ps.{bits}", total.type, [total, a, b])


def _fold(builder: Any, a: Any, b: Any, low: list[tuple[int, int]], high: list[tuple[int, int]]) -> Any:
    """Adds two shuffles of a and b, each given for four neighbouring lanes as pairs (0 for a or 1 for b, lane)."""
    lanes = a.type.count

    def shuffled(pattern: list[tuple[int, int]]) -> Any:
        numbers = [base + lane + source * lanes for base in range(0, lanes, 4) for source, lane in pattern]
        return builder.shuffle_vector(a, b, ir.Constant(vector_of(INT32, lanes), numbers))

    return builder.fadd(shuffled(low), shuffled(high))


def sum_four(builder: Any, vectors: list[Any]) -> Any:
    """The sums over the lanes of four vectors, as one vector of four."""
    singles = [(0, 0), (1, 0), (0, 1), (1, 1)], [(0, 2), (1, 2), (0, 3), (1, 3)]
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 2), (0, 3), (1, 2), (1, 3)]
    left = _fold(builder, vectors[0], vectors[1], *singles)
    right = _fold(builder, vectors[2], vectors[3], *singles)
    total = _fold(builder, left, right, *pairs)
    while total.type.count > 4:
        half = total.type.count // 2
        total = builder.fadd(lanes_from(builder, total, 0, half), lanes_from(builder, total, half, half))
    return total


class Accumulators:
    """A grid of vector registers that a loop of machine code adds to."""

    def __init__(self, builder: Any, path: VectorPath, rows: int, columns: int) -> None:
        self.builder = builder
        zero = constant(FLOAT, path.lanes, 0.0)
        self.cells = [[cgutils.alloca_once_value(builder, zero) for _ in range(columns)] for _ in range(rows)]
        for line in self.cells:
            for cell in line:
                builder.store(zero, cell)

    def add_product(self, row: int, column: int, a: Any, b: Any) -> None:
        cell = self.cells[row][column]
        self.builder.store(_multiply_add(self.builder, a, b, self.builder.load(cell)), cell)

    def value(self, row: int, column: int) -> Any:
        return self.builder.load(self.cells[row][column])


def _offset(builder: Any, base: Any, index: Any, step: int) -> Any:
    """base + index * step, for an index known at run time."""
    return builder.add(base, builder.mul(index, INT64(step)))


def _listed(builder: Any, addresses: Any, index: Any) -> Any:
    """Address number `index` of a list."""
    return builder.load(builder.gep(pointer(builder, addresses), [index], source_etype=INT64), typ=INT64)


def _for_each_count(builder: Any, count: Any, emit: Callable[[int], None]) -> None:
    """Code that does `emit(n)` for the n from 1 to `TILE_ROWS` that equals `count`."""
    for number in range(TILE_ROWS, 0, -1):
        with builder.if_then(builder.icmp_signed("==", count, INT64(number))):
            emit(number)


def _row_groups(path: VectorPath, count: int) -> list[range]:
    """Rows 0 to `count - 1` in groups that fit the registers."""
    most = TILE_ROWS if path.lanes >= 16 else 2
    return [range(start, min(start + most, count)) for start in range(0, count, most)]


@primitive
def score_tile(
    typing_context: Any,
    path: Any,
    row_element: Any,
    element: Any,
    num_rows: Any,
    rows: Any,
    row_bytes: Any,
    keys: Any,
    key_offset: Any,
    size: Any,
    out: Any,
    out_bytes: Any,
    ahead: Any,
    ahead_offset: Any,
) -> Any:
    """Scores of `num_rows` (1 to `TILE_ROWS`) rows and `TILE_TOKENS` tokens.

    `rows` is the first row's address, `row_bytes` the way to the next; `keys` points to int64 addresses, to each of
    which `key_offset` is added; `size` numbers are multiplied. Float32 scores go to `out`, rows `out_bytes` apart.
    As much as is read of each key is asked for at the addresses that `ahead` points to, `ahead_offset` added.
    """
    kinds = path.value, row_element.value, element.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def emit_count(count: int) -> None:
            for group in _row_groups(path.value, count):
                _emit_scores(builder, kinds, group, arguments[4:])

        _for_each_count(builder, arguments[3], emit_count)
        return context.get_dummy_value()

    return types.none(path, row_element, element, *[types.int64] * 10), emit


def _emit_scores(builder: Any, kinds: tuple[VectorPath, Element, Element], group: range, arguments: Any) -> None:
    path, row_element, element = kinds
    rows, row_bytes, keys, key_offset, size, out, out_bytes, ahead, ahead_offset = arguments
    is_pairs = uses_dot(path, row_element, element)
    step = path.lanes * (2 if is_pairs else 1)
    key_at, ahead_at = (
        [builder.add(_listed(builder, addresses, INT64(token)), offset) for token in range(TILE_TOKENS)]
        for addresses, offset in ((keys, key_offset), (ahead, ahead_offset))
    )
    row_at = [_offset(builder, rows, row_bytes, row) for row in group]
    totals = Accumulators(builder, path, len(group), TILE_TOKENS)

    def add_step(start: Any, some: Any) -> None:
        def part(kind: Element, at: Any) -> Any:
            address = _offset(builder, at, start, kind.num_bytes)
            return (
                load_pairs(builder, path, address, some) if is_pairs else emit_load(builder, path, kind, address, some)
            )

        parts = [part(row_element, at) for at in row_at]
        for token, at in enumerate(key_at):
            emit_prefetch(builder, _offset(builder, ahead_at[token], start, element.num_bytes))
            key = part(element, at)
            for row, values in enumerate(parts):
                totals.add_product(row, token, values, key)

    num_steps = builder.sdiv(size, INT64(step))
    with cgutils.for_range(builder, num_steps, intp=INT64) as loop:
        add_step(builder.mul(loop.index, INT64(step)), None)
    done = builder.mul(num_steps, INT64(step))
    with builder.if_then(builder.icmp_signed("<", done, size)):
        add_step(done, builder.sub(size, done))
    for row, number in enumerate(group):
        sums = sum_four(builder, [totals.value(row, token) for token in range(TILE_TOKENS)])
        raw_store(builder, sums, _offset(builder, out, out_bytes, number), None)


@primitive
def accumulate_tile(
    typing_context: Any,
    path: Any,
    element: Any,
    num_rows: Any,
    weights: Any,
    weight_bytes: Any,
    keep: Any,
    take: Any,
    values: Any,
    value_offset: Any,
    num_tokens: Any,
    num_columns: Any,
    out: Any,
    out_bytes: Any,
    ahead: Any,
    ahead_offset: Any,
) -> Any:
    """Weighted sums of values for `num_rows` (1 to `TILE_ROWS`) rows and `TILE_VECTORS` vectors of columns.

    Where fewer than two vectors' columns are left, one vector is done; numbers behind `num_columns` are not touched.
    `weights` points to float32 `[row][token]`, rows `weight_bytes` apart; `values` to `num_tokens` int64 addresses, to
    each of which `value_offset` is added; `keep` and `take` to a float32 per row; `out` is float32 in whole vectors,
    rows `out_bytes` apart. As much as is read of each value is asked for at the addresses that `ahead` points to,
    `ahead_offset` added. Returns the columns that are done.
    """
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count, columns, rest = (arguments[2], arguments[10], [*arguments[3:10], *arguments[11:]])
        wide = INT64(TILE_VECTORS * vectors.lanes)
        done = cgutils.alloca_once_value(builder, wide)
        builder.store(wide, done)

        def emit_width(width: int, some: Any) -> None:
            def emit_count(number: int) -> None:
                for group in _row_groups(vectors, number):
                    _emit_sums(builder, (vectors, element.value), group, width, some, rest)

            _for_each_count(builder, count, emit_count)

        with builder.if_else(builder.icmp_signed(">=", columns, wide)) as (many, few):
            with many:
                emit_width(TILE_VECTORS, None)
            with few:
                is_whole = builder.icmp_signed(">=", columns, INT64(vectors.lanes))
                some = builder.select(is_whole, INT64(vectors.lanes), columns)
                builder.store(some, done)
                emit_width(1, some)
        return builder.load(done)

    return types.int64(path, element, *[types.int64] * 13), emit


def _emit_sums(
    builder: Any, kinds: tuple[VectorPath, Element], group: range, width: int, some: Any, arguments: Any
) -> None:
    path, element = kinds
    (weights, weight_bytes, keep, take, values, value_offset, num_tokens, out, out_bytes, ahead, ahead_offset) = (
        arguments
    )
    weight_rows = [pointer(builder, _offset(builder, weights, weight_bytes, row)) for row in group]
    totals = Accumulators(builder, path, len(group), width)
    with cgutils.for_range(builder, num_tokens, intp=INT64) as loop:
        at = builder.add(_listed(builder, values, loop.index), value_offset)
        ahead_at = builder.add(_listed(builder, ahead, loop.index), ahead_offset)
        step = path.lanes * element.num_bytes
        for line in range(0, width * step, LINE):
            emit_prefetch(builder, builder.add(ahead_at, INT64(line)))
        parts = [emit_load(builder, path, element, builder.add(at, INT64(v * step)), some) for v in range(width)]
        for row, line in enumerate(weight_rows):
            weight = builder.load(builder.gep(line, [loop.index], source_etype=FLOAT), typ=FLOAT)
            for v, part in enumerate(parts):
                totals.add_product(row, v, broadcast(builder, weight, path.lanes), part)
    for row, number in enumerate(group):
        factors = (builder.load(pointer(builder, builder.add(at, INT64(4 * number))), typ=FLOAT) for at in (keep, take))
        kept, taken = (broadcast(builder, factor, path.lanes) for factor in factors)
        for v in range(width):
            at = builder.add(_offset(builder, out, out_bytes, number), INT64(4 * v * path.lanes))
            before = builder.fmul(emit_load(builder, path, FLOAT32, at, None), kept)
            raw_store(builder, emit_fma(builder, totals.value(row, v), taken, before), at, None)
