"""Attention of few rows over the segments of pages, in float32: decode, and prefill where keys are not packed.

Pages are fetched ahead of their use: values while the scores of their keys are computed, the next segment's keys while
values are summed.
"""

from __future__ import annotations

from typing import Any

from octavo.attention.numba_emit import LINE, Element, VectorPath
from octavo.attention.numba_job import (
    AHEAD,
    LIST_BYTES,
    SEGMENT,
    SPAN_SEGMENTS,
    Part,
    Scratch,
    Segment,
    Tile,
    align,
    list_tokens,
    reach,
    state_bytes,
)
from octavo.attention.numba_memory import get_int64, prefetch
from octavo.attention.numba_softmax import clear_state, merge_factors, merge_states, weigh_rows
from octavo.attention.numba_tiles import TILE_ROWS, TILE_TOKENS, accumulate_tile, score_tile
from octavo.attention.numba_vectors import compiled


@compiled
def prefetch_rows(listed: int, offset: int, begin: int, end: int, num_bytes: int) -> None:
    """Asks for `num_bytes` of the rows `begin` to `end - 1` of a list."""
    for token in range(begin, end):
        at = get_int64(listed + 8 * token) + offset
        for line in range(0, num_bytes, LINE):
            prefetch(at + line)


@compiled
def score_rows(
    path: VectorPath, row_element: Element, element: Element, job: Any, scratch: Scratch, tile: Tile, seg: Segment
) -> None:
    """Products of the tile's rows with the listed keys, into `scratch.scores`.

    Meanwhile the values are fetched; and the keys too, unless the segment before did so.
    """
    key_bytes = job.size * element.num_bytes
    if seg.is_first:
        for head in range(tile.head, tile.head + tile.num_heads):
            stop = min(seg.begin + AHEAD, seg.end)
            prefetch_rows(seg.listed, head * job.key_head_bytes, seg.begin, stop, key_bytes)
    for token in range(seg.begin // TILE_TOKENS * TILE_TOKENS, seg.end, TILE_TOKENS):
        ahead = min(token + AHEAD, SEGMENT)
        for head in range(tile.num_heads):
            offset, value_offset = (tile.head + head) * job.key_head_bytes, (tile.head + head) * job.value_head_bytes
            if seg.is_first:
                prefetch_rows(seg.listed, offset, ahead, min(ahead + TILE_TOKENS, seg.end), key_bytes)
            for group in range(0, tile.num_rows, TILE_ROWS):
                row = head * tile.num_rows + group
                score_tile(
                    path,
                    row_element,
                    element,
                    min(tile.num_rows - group, TILE_ROWS),
                    scratch.rows + row * scratch.row_bytes,
                    scratch.row_bytes,
                    seg.listed + 8 * token,
                    offset,
                    job.size,
                    scratch.scores + 4 * (row * SEGMENT + token),
                    4 * SEGMENT,
                    seg.listed + LIST_BYTES + 8 * token,
                    value_offset,
                )


@compiled
def sum_values(
    path: VectorPath, element: Element, job: Any, scratch: Scratch, tile: Tile, state: int, seg: Segment
) -> None:
    """Adds the listed values, by the weights in `scratch.scores`, to the weighted sums of `state`.

    Meanwhile the next segment's keys are fetched.
    """
    vector = align(4 * tile.num_heads * tile.num_rows)
    for head in range(tile.num_heads):
        offset, key_offset = ((tile.head + head) * job.value_head_bytes, (tile.head + head) * job.key_head_bytes)
        for group in range(0, tile.num_rows, TILE_ROWS):
            row, column = head * tile.num_rows + group, 0
            while column < job.value_size:
                column += accumulate_tile(
                    path,
                    element,
                    min(tile.num_rows - group, TILE_ROWS),
                    scratch.scores + 4 * (row * SEGMENT + seg.begin),
                    4 * SEGMENT,
                    scratch.keep + 4 * row,
                    scratch.take + 4 * row,
                    seg.listed + LIST_BYTES + 8 * seg.begin,
                    offset + column * element.num_bytes,
                    seg.end - seg.begin,
                    job.value_size - column,
                    state + 2 * vector + row * scratch.line_bytes + 4 * column,
                    scratch.line_bytes,
                    seg.next_listed + 8 * seg.begin,
                    key_offset + column * element.num_bytes,
                )


@compiled
def attend_segments(
    path: VectorPath,
    row_element: Element,
    element: Element,
    job: Any,
    scratch: Scratch,
    tile: Tile,
    granule: int,
    slots: int,
    first_segment: int,
    stop_segment: int,
) -> None:
    """Attends the positions of segments `first_segment` to `stop_segment - 1`.

    Where `granule` is 0 they are folded into `scratch.total`, span by span; else every `granule` segments into a slot
    of their own, where `slots` is that of the tile's first.
    """
    first, last = reach(job, tile)
    num_rows = tile.num_heads * tile.num_rows
    size = SPAN_SEGMENTS if granule == 0 else granule
    slot_bytes = 0 if granule == 0 else align(state_bytes(num_rows, job.value_size))
    slot = scratch.span if granule == 0 else slots - first // SEGMENT // granule * slot_bytes
    clear_state(path, scratch, scratch.total, num_rows)
    for segment in range(first_segment, stop_segment):
        start = segment * SEGMENT
        begin, end = max(first - start, 0), min(last + 1 - start, SEGMENT)
        listed, next_listed = (
            scratch.lists + segment % 2 * 2 * LIST_BYTES,
            scratch.lists + (segment + 1) % 2 * 2 * LIST_BYTES,
        )
        if segment == first_segment:
            list_tokens(job, tile.request, start, begin, end, SEGMENT, listed)
        if segment + 1 < stop_segment:
            stop = min(last + 1 - start - SEGMENT, SEGMENT)
            list_tokens(job, tile.request, start + SEGMENT, 0, stop, SEGMENT, next_listed)
        else:
            next_listed = listed
        seg = Segment(begin, end, listed, next_listed, segment == first_segment)
        state = slot + segment // size * slot_bytes
        if segment == first_segment or segment % size == 0:
            clear_state(path, scratch, state, num_rows)
        score_rows(path, row_element, element, job, scratch, tile, seg)
        weigh_rows(path, job, scratch, tile, segment, begin, end)
        merge_factors(path, scratch, num_rows, scratch.tops, scratch.sums, state, state + align(4 * num_rows))
        sum_values(path, element, job, scratch, tile, state, seg)
        if granule == 0 and (segment + 1 == stop_segment or (segment + 1) % size == 0):
            merge_states(path, scratch, state, scratch.total, num_rows)


@compiled
def join_parts(path: VectorPath, job: Any, scratch: Scratch, tile: Tile, part: Part, slots: int) -> None:
    """Folds the slots of a split request into `scratch.total`, in the order of an unsplit one."""
    first, last = reach(job, tile)
    num_rows = tile.num_heads * tile.num_rows
    slot_bytes = align(state_bytes(num_rows, job.value_size))
    clear_state(path, scratch, scratch.total, num_rows)
    clear_state(path, scratch, scratch.span, num_rows)
    for slot in range(part.num_slots):
        segment = first // SEGMENT + slot
        target = scratch.total if part.granule == SPAN_SEGMENTS else scratch.span
        merge_states(path, scratch, slots + slot * slot_bytes, target, num_rows)
        if part.granule < SPAN_SEGMENTS and (segment == last // SEGMENT or (segment + 1) % SPAN_SEGMENTS == 0):
            merge_states(path, scratch, scratch.span, scratch.total, num_rows)
            clear_state(path, scratch, scratch.span, num_rows)
