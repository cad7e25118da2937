"""The two products of attention over a widened segment, as register tiles of many rows.

    score_block   out[row, token] = sum over d of row[d] * key(token)[d]
    value_block   out[row, d] = out[row, d] * keep[row] + take[row] * sum over tokens: weight[row, token] * V[token][d]

They sum in the very order of `numba_tiles`, so they give the same bits; all numbers are float32, and blocks are whole.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils

from octavo.attention.numba_emit import (
    FLOAT,
    FLOAT32,
    INT64,
    VectorPath,
    broadcast,
    emit_fma,
    emit_load,
    pointer,
    raw_load,
    raw_store,
)
from octavo.attention.numba_tiles import TILE_TOKENS, Accumulators, sum_four
from octavo.attention.numba_vectors import primitive

WIDE_ROWS = 12
"""Rows that blocks of any size divide: a tile's rows are rounded up to a multiple of it."""
PANEL_VECTORS = 2
"""Vectors of columns of a panel of values."""


def score_rows_of(path: VectorPath) -> int:
    """Rows of a score block: with `TILE_TOKENS` tokens as many as have their sums in registers."""
    return 6 if path.lanes >= 16 else 3


def value_rows_of(path: VectorPath) -> int:
    """Rows of a value block: with `PANEL_VECTORS` vectors as many as have their sums in registers."""
    return 12 if path.lanes >= 16 else 6


def _places(builder: Any, base: Any, step: Any, count: int) -> list[Any]:
    """Addresses `step` bytes apart."""
    return [builder.add(base, builder.mul(step, INT64(number))) for number in range(count)]


@primitive
def score_block(
    typing_context: Any,
    path: Any,
    rows: Any,
    row_bytes: Any,
    keys: Any,
    key_bytes: Any,
    num_steps: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Scores of `score_rows_of(path)` rows and `TILE_TOKENS` keys, each of `num_steps` whole vectors.

    Addresses of the first row, key and result; the next lie so many bytes behind it.
    """
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, row_bytes, keys, key_bytes, num_steps, out, out_bytes = arguments[1:]
        num_rows = score_rows_of(vectors)
        row_at = _places(builder, rows, row_bytes, num_rows)
        key_at = _places(builder, keys, key_bytes, TILE_TOKENS)
        totals = Accumulators(builder, vectors, num_rows, TILE_TOKENS)
        with cgutils.for_range(builder, num_steps, intp=INT64) as loop:
            offset = builder.mul(loop.index, INT64(4 * vectors.lanes))
            parts = [raw_load(builder, FLOAT, vectors.lanes, builder.add(at, offset), None) for at in row_at]
            for token, at in enumerate(key_at):
                key = raw_load(builder, FLOAT, vectors.lanes, builder.add(at, offset), None)
                for row, numbers in enumerate(parts):
                    totals.add_product(row, token, numbers, key)
        for row, at in enumerate(_places(builder, out, out_bytes, num_rows)):
            sums = sum_four(builder, [totals.value(row, token) for token in range(TILE_TOKENS)])
            raw_store(builder, sums, at, None)
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 7), emit


@primitive
def value_block(
    typing_context: Any,
    path: Any,
    weights: Any,
    weight_bytes: Any,
    keep: Any,
    take: Any,
    panel: Any,
    num_tokens: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Weighted sums of a panel of values, `PANEL_VECTORS` vectors a token, for `value_rows_of(path)` rows.

    `weights` points to float32 `[row][token]`, `keep` and `take` to a float32 per row, `out` to the panel's columns
    of the first row; rows of weights and of results lie so many bytes apart.
    """
    vectors = path.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, weight_bytes, keep, take, panel, num_tokens, out, out_bytes = arguments[1:]
        num_rows, lanes = value_rows_of(vectors), vectors.lanes
        weight_at = _places(builder, weights, weight_bytes, num_rows)
        totals = Accumulators(builder, vectors, num_rows, PANEL_VECTORS)
        with cgutils.for_range(builder, num_tokens, intp=INT64) as loop:
            at = builder.add(panel, builder.mul(loop.index, INT64(4 * PANEL_VECTORS * lanes)))
            parts = [
                raw_load(builder, FLOAT, lanes, builder.add(at, INT64(4 * lanes * number)), None)
                for number in range(PANEL_VECTORS)
            ]
            offset = builder.mul(loop.index, INT64(4))
            for row, line in enumerate(weight_at):
                weight = builder.load(pointer(builder, builder.add(line, offset)), typ=FLOAT, align=4)
                wide = broadcast(builder, weight, lanes)
                for number, part in enumerate(parts):
                    totals.add_product(row, number, wide, part)
        for row, line in enumerate(_places(builder, out, out_bytes, num_rows)):
            factors = (
                builder.load(pointer(builder, builder.add(at, INT64(4 * row))), typ=FLOAT, align=4)
                for at in (keep, take)
            )
            kept, taken = (broadcast(builder, factor, lanes) for factor in factors)
            for number in range(PANEL_VECTORS):
                at = builder.add(line, INT64(4 * lanes * number))
                before = builder.fmul(emit_load(builder, vectors, FLOAT32, at, None), kept)
                raw_store(builder, emit_fma(builder, totals.value(row, number), taken, before), at, None)
        return context.get_dummy_value()

    return types.none(path, *[types.int64] * 8), emit
