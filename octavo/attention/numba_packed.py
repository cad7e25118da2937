"""Attention of many rows at once, where the CPU multiplies bfloat16: both products go over packed blocks.

A segment's keys are packed once for all rows of the tile; its weights are rounded to bfloat16, as the values are. The
running softmax is the usual one: the weighted sums are rescaled when a row's largest score grows.
"""

from __future__ import annotations

from typing import Any

from octavo.attention.numba_blocks import (
    BLOCK,
    COLUMNS,
    PAIR_BYTES,
    STEP,
    begin_tiles,
    end_tiles,
    pack_keys,
    pack_pair,
    product_block,
)
from octavo.attention.numba_emit import FLOAT32, VectorPath
from octavo.attention.numba_job import (
    LIST_BYTES,
    PACKED_SEGMENT,
    Scratch,
    Tile,
    align,
    first_position,
    list_tokens,
    reach,
)
from octavo.attention.numba_memory import get_float32, get_int64, put_float32
from octavo.attention.numba_softmax import LOG2_E, LOWEST, MINUS_INFINITY, clear_state, distances, log2_scores, slope_of
from octavo.attention.numba_vectors import (
    choose,
    compiled,
    exp2_short,
    fma,
    load,
    maximum,
    maximum_of,
    ramp,
    splat,
    store,
    store_weights,
    sum_of,
)


@compiled
def steps_of(size: int) -> int:
    """Steps of an inner dimension of `size`."""
    return (size + STEP - 1) // STEP


@compiled
def pack_segment_keys(path: VectorPath, job: Any, scratch: Scratch, offset: int, begin: int, end: int) -> None:
    """Packs the listed keys as columns: every 16 tokens `column_bytes` of the head's size."""
    column_bytes = steps_of(job.size) * (STEP // 2) * PAIR_BYTES
    for token in range(begin // COLUMNS * COLUMNS, end, COLUMNS):
        to = scratch.packed + token // COLUMNS * column_bytes
        pack_keys(path, scratch.lists + 8 * token, offset, job.size, to)


@compiled
def pack_segment_values(path: VectorPath, job: Any, scratch: Scratch, offset: int, begin: int, end: int) -> None:
    """Packs the listed values as pairs of rows: every 16 columns of the head take the pairs of a whole segment."""
    column_bytes = PACKED_SEGMENT // 2 * PAIR_BYTES
    listed = scratch.lists + LIST_BYTES
    for token in range(begin // STEP * STEP, steps_of(end) * STEP, 2):
        first, second = (get_int64(listed + 8 * token) + offset, get_int64(listed + 8 * token + 8) + offset)
        to = scratch.packed + token // 2 * PAIR_BYTES
        pack_pair(path, first, second, job.value_size, to, column_bytes)


@compiled
def multiply_keys(path: VectorPath, job: Any, scratch: Scratch, num_rows: int, begin: int, end: int) -> None:
    """scores = rows * packed keys, for whole blocks around `begin` to `end - 1`."""
    num_steps = steps_of(job.size)
    column_bytes = num_steps * (STEP // 2) * PAIR_BYTES
    for token in range(begin // BLOCK * BLOCK, end, BLOCK):
        b = scratch.packed + token // COLUMNS * column_bytes
        for row in range(0, num_rows, BLOCK):
            a, c = (scratch.rows + row * scratch.row_bytes, scratch.scores + 4 * (row * PACKED_SEGMENT + token))
            product_block(path, a, scratch.row_bytes, b, column_bytes, num_steps, c, 4 * PACKED_SEGMENT, 0)


@compiled
def multiply_values(path: VectorPath, job: Any, scratch: Scratch, num_rows: int, begin: int, end: int) -> None:
    """weighted sums += weights * packed values."""
    first, column_bytes = begin // STEP, PACKED_SEGMENT // 2 * PAIR_BYTES
    num_steps = steps_of(end) - first
    sums = scratch.total + 2 * align(4 * num_rows)
    for column in range(0, job.value_size, BLOCK):
        b = scratch.packed + column // COLUMNS * column_bytes + first * (STEP // 2) * PAIR_BYTES
        for row in range(0, num_rows, BLOCK):
            a, c = (
                scratch.scores + row * 4 * PACKED_SEGMENT + 2 * STEP * first,
                sums + row * scratch.line_bytes + 4 * column,
            )
            product_block(path, a, 4 * PACKED_SEGMENT, b, column_bytes, num_steps, c, scratch.line_bytes, 1)


@compiled
def keeps_scores(job: Any) -> bool:
    """Whether scores take the products' places: where they are more than products times a number."""
    return job.soft_cap != 0.0 or job.slopes != 0  # type: ignore[no-any-return]


@compiled
def top_of(
    path: VectorPath, job: Any, line: int, begin: int, end: int, low: int, high: int, place: int, slope: float
) -> float:
    """The largest number of a row of products, in units of log 2; the row's query stands at offset `place`.

    Products outside `low` to `high - 1` become minus infinity; where there is a cap or a slope, scores take the
    products' places.
    """
    top = splat(path, LOWEST)
    if not keeps_scores(job) and low <= begin and end <= high:
        for token in range(begin, end, path.lanes):
            top = maximum(load(path, FLOAT32, line + 4 * token), top)
        return maximum_of(top) * scale_of(job)  # type: ignore[no-any-return]
    for token in range(begin, end, path.lanes):
        numbers = load(path, FLOAT32, line + 4 * token)
        if keeps_scores(job):
            numbers = log2_scores(path, job, line + 4 * token)
        if job.slopes != 0:
            numbers = numbers + distances(path, token, place, slope)
        if token < low or token + path.lanes > high:
            number = ramp(path, token)
            numbers = choose(number < splat(path, low), splat(path, MINUS_INFINITY), numbers)
            numbers = choose(number < splat(path, high), numbers, splat(path, MINUS_INFINITY))
        store(path, FLOAT32, line + 4 * token, numbers)
        top = maximum(numbers, top)
    return max(maximum_of(top) * scale_of(job), LOWEST)  # type: ignore[no-any-return]


@compiled
def scale_of(job: Any) -> float:
    """What `top_of` leaves is multiplied with this to give scores in units of log 2."""
    return 1.0 if keeps_scores(job) else job.scale * LOG2_E


@compiled
def weights_of(path: VectorPath, job: Any, line: int, begin: int, end: int, top: float) -> float:
    """The sum of a row's weights. Puts them, as bfloat16, where its scores were."""
    total, scale, shift = splat(path, 0.0), splat(path, scale_of(job)), splat(path, -top)
    for token in range(begin, end, path.lanes):
        weights = exp2_short(path, fma(load(path, FLOAT32, line + 4 * token), scale, shift))
        store_weights(path, line + 2 * token, weights)
        total = total + weights
    return sum_of(total)  # type: ignore[no-any-return]


@compiled
def find_tops(path: VectorPath, job: Any, scratch: Scratch, tile: Tile, start: int, begin: int, end: int) -> None:
    """Largest scores of a segment for all rows, into `scratch.tops`."""
    first, stop = begin // STEP * STEP, steps_of(end) * STEP
    last = tile.base_position + (tile.row + tile.num_rows - 1) // job.group_size
    highest = tile.base_position + tile.row // job.group_size - start
    is_inside = end == PACKED_SEGMENT and highest >= PACKED_SEGMENT - 1 and first_position(job, last) <= start
    for row in range(tile.num_rows):
        low, high = 0, PACKED_SEGMENT
        position = tile.base_position + (tile.row + row) // job.group_size
        if not is_inside:
            low, high = max(first_position(job, position) - start, begin), min(position + 1 - start, end)
        line, slope = scratch.scores + 4 * row * PACKED_SEGMENT, slope_of(job, tile, row)
        put_float32(scratch.tops + 4 * row, top_of(path, job, line, first, stop, low, high, position - start, slope))


@compiled
def weigh_packed(path: VectorPath, job: Any, scratch: Scratch, tile: Tile, begin: int, end: int) -> None:
    """Weights of a segment for all rows; rescales the weighted sums of rows whose largest score grew."""
    tops, sums = scratch.total, scratch.total + align(4 * tile.num_rows)
    first, stop = begin // STEP * STEP, steps_of(end) * STEP
    for at in range(0, 4 * tile.num_rows, 4 * path.lanes):
        before = load(path, FLOAT32, tops + at)
        top = maximum(load(path, FLOAT32, scratch.tops + at), before)
        store(path, FLOAT32, tops + at, top)
        store(path, FLOAT32, scratch.keep + at, exp2_short(path, before - top))
    for row in range(tile.num_rows):
        line, top = scratch.scores + 4 * row * PACKED_SEGMENT, get_float32(tops + 4 * row)
        put_float32(scratch.sums + 4 * row, weights_of(path, job, line, first, stop, top))
    for at in range(0, 4 * tile.num_rows, 4 * path.lanes):
        kept = load(path, FLOAT32, sums + at) * load(path, FLOAT32, scratch.keep + at)
        store(path, FLOAT32, sums + at, kept + load(path, FLOAT32, scratch.sums + at))
    lines = sums + align(4 * tile.num_rows)
    for row in range(tile.num_rows):
        keep = get_float32(scratch.keep + 4 * row)
        if keep < 1.0:
            factor, line = splat(path, keep), lines + row * scratch.line_bytes
            for at in range(line, line + scratch.line_bytes, 4 * path.lanes):
                store(path, FLOAT32, at, load(path, FLOAT32, at) * factor)


@compiled
def attend_packed(path: VectorPath, job: Any, scratch: Scratch, tile: Tile) -> None:
    """Attends all positions of a tile of one head; the state is left in `scratch.total`."""
    first, last = reach(job, tile)
    key_offset, value_offset = (tile.head * job.key_head_bytes, tile.head * job.value_head_bytes)
    clear_state(path, scratch, scratch.total, tile.num_rows)
    begin_tiles(path, scratch.tops)
    for segment in range(first // PACKED_SEGMENT, last // PACKED_SEGMENT + 1):
        start = segment * PACKED_SEGMENT
        begin, end = max(first - start, 0), min(last + 1 - start, PACKED_SEGMENT)
        list_tokens(job, tile.request, start, begin, end, PACKED_SEGMENT, scratch.lists)
        pack_segment_keys(path, job, scratch, key_offset, begin, end)
        multiply_keys(path, job, scratch, tile.num_rows, begin, end)
        find_tops(path, job, scratch, tile, start, begin, end)
        weigh_packed(path, job, scratch, tile, begin, end)
        pack_segment_values(path, job, scratch, value_offset, begin, end)
        multiply_values(path, job, scratch, tile.num_rows, begin, end)
    end_tiles(path)
