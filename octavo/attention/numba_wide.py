"""Attention of many rows at once in float32: prefill where the CPU does not multiply bfloat16.

A segment's keys, and then its values, are widened once for all rows of a tile: keys as they lie, values in panels of a
few columns, token after token. What is summed, and in which order, is what `numba_segments` does.
"""

from __future__ import annotations

from typing import Any

from octavo.attention.numba_emit import FLOAT32, Element, VectorPath
from octavo.attention.numba_job import (
    LIST_BYTES,
    SEGMENT,
    SPAN_SEGMENTS,
    Scratch,
    Tile,
    align,
    list_tokens,
    reach,
)
from octavo.attention.numba_memory import get_int64
from octavo.attention.numba_softmax import clear_state, merge_factors, merge_states, weigh_rows
from octavo.attention.numba_tiles import TILE_TOKENS
from octavo.attention.numba_vectors import compiled, load, load_some, store
from octavo.attention.numba_wide_tiles import PANEL_VECTORS, WIDE_ROWS, score_block, value_block

GROUP_TOKENS = 16
"""Keys that meet all rows before the next ones do: at 256 numbers each they fill half of a core's nearest cache."""


@compiled
def widen(path: VectorPath, element: Element, address: int, count: int, to: int) -> None:
    """Writes `count` numbers as float32, most a vector, and zeros up to a whole one."""
    if count >= path.lanes:
        store(path, FLOAT32, to, load(path, element, address))
    else:
        store(path, FLOAT32, to, load_some(path, element, address, count))


@compiled
def widen_keys(
    path: VectorPath, element: Element, job: Any, scratch: Scratch, offset: int, begin: int, end: int
) -> None:
    """The listed keys, `scratch.row_bytes` each, in `scratch.packed`: quartets of tokens around `begin` to `end`."""
    stop = (end + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS
    for token in range(begin // TILE_TOKENS * TILE_TOKENS, stop):
        key, to = get_int64(scratch.lists + 8 * token) + offset, scratch.packed + token * scratch.row_bytes
        for number in range(0, job.size, path.lanes):
            widen(path, element, key + number * element.num_bytes, job.size - number, to + 4 * number)


@compiled
def panel_bytes(path: VectorPath) -> int:
    """Bytes of a panel: some columns of a segment's values."""
    return 4 * PANEL_VECTORS * path.lanes * SEGMENT


@compiled
def widen_values(
    path: VectorPath, element: Element, job: Any, scratch: Scratch, offset: int, begin: int, end: int
) -> None:
    """The listed values, panel by panel, in `scratch.packed`."""
    columns = PANEL_VECTORS * path.lanes
    for token in range(begin, end):
        value = get_int64(scratch.lists + LIST_BYTES + 8 * token) + offset
        to = scratch.packed + 4 * columns * token
        for column in range(0, job.value_size, columns):
            for number in range(column, column + columns, path.lanes):
                count = max(job.value_size - number, 0)
                widen(path, element, value + number * element.num_bytes, count, to + 4 * (number - column))
            to += panel_bytes(path)


@compiled
def score_wide(path: VectorPath, height: int, job: Any, scratch: Scratch, num_rows: int, begin: int, end: int) -> None:
    """Products of the tile's rows, `height` at a time, with the widened keys, into `scratch.scores`."""
    num_steps = (job.size + path.lanes - 1) // path.lanes
    for group in range(begin // TILE_TOKENS * TILE_TOKENS, end, GROUP_TOKENS):
        for row in range(0, num_rows, height):
            rows = scratch.rows + row * scratch.row_bytes
            for token in range(group, min(group + GROUP_TOKENS, end), TILE_TOKENS):
                keys = scratch.packed + token * scratch.row_bytes
                out = scratch.scores + 4 * (row * SEGMENT + token)
                score_block(path, rows, scratch.row_bytes, keys, scratch.row_bytes, num_steps, out, 4 * SEGMENT)


@compiled
def sum_wide(
    path: VectorPath, height: int, job: Any, scratch: Scratch, tile: Tile, state: int, begin: int, end: int
) -> None:
    """Adds the widened values, by the weights in `scratch.scores`, to the weighted sums of `state`."""
    lines, columns = state + 2 * align(4 * tile.num_rows), PANEL_VECTORS * path.lanes
    for column in range(0, job.value_size, columns):
        panel = scratch.packed + column // columns * panel_bytes(path) + 4 * columns * begin
        for row in range(0, tile.num_rows, height):
            value_block(
                path,
                scratch.scores + 4 * (row * SEGMENT + begin),
                4 * SEGMENT,
                scratch.keep + 4 * row,
                scratch.take + 4 * row,
                panel,
                end - begin,
                lines + row * scratch.line_bytes + 4 * column,
                scratch.line_bytes,
            )


@compiled
def attend_wide(
    path: VectorPath, heights: tuple[int, int], element: Element, job: Any, scratch: Scratch, tile: Tile
) -> None:
    """Attends all positions of a tile of one head; the state is left in `scratch.total`.

    `heights` are the rows of a score block and of a value block. Rows behind the tile's last one, up to whole blocks,
    are computed from whatever lies there, and nobody reads what comes of it.
    """
    first, last = reach(job, tile)
    key_offset, value_offset = tile.head * job.key_head_bytes, tile.head * job.value_head_bytes
    state, stop_segment = scratch.span, last // SEGMENT + 1
    num_rows = (tile.num_rows + WIDE_ROWS - 1) // WIDE_ROWS * WIDE_ROWS
    clear_state(path, scratch, scratch.total, tile.num_rows)
    for segment in range(first // SEGMENT, stop_segment):
        start = segment * SEGMENT
        begin, end = max(first - start, 0), min(last + 1 - start, SEGMENT)
        if segment == first // SEGMENT or segment % SPAN_SEGMENTS == 0:
            clear_state(path, scratch, state, tile.num_rows)
        list_tokens(job, tile.request, start, begin, end, SEGMENT, scratch.lists)
        widen_keys(path, element, job, scratch, key_offset, begin, end)
        score_wide(path, heights[0], job, scratch, num_rows, begin, end)
        weigh_rows(path, job, scratch, tile, segment, begin, end)
        sums = state + align(4 * tile.num_rows)
        merge_factors(path, scratch, tile.num_rows, scratch.tops, scratch.sums, state, sums)
        widen_values(path, element, job, scratch, value_offset, begin, end)
        sum_wide(path, heights[1], job, scratch, tile, state, begin, end)
        if segment + 1 == stop_segment or (segment + 1) % SPAN_SEGMENTS == 0:
            merge_states(path, scratch, state, scratch.total, tile.num_rows)
