"""Attention of one unit of work: rows of queries over segments of pages."""

from __future__ import annotations

from typing import Any

from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32, LINE, Element, VectorPath
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
    first_position,
    measure,
    num_queries_of,
    part_of,
    scratch_of,
    slots_bytes_of,
    state_bytes,
)
from octavo.attention.numba_rows import copy_row
from octavo.attention.numba_softmax import LOG2_E, clear_state, merge_factors, merge_states, weigh_rows
from octavo.attention.numba_tiles import TILE_ROWS, TILE_TOKENS, accumulate_tile, score_tile
from octavo.attention.numba_vectors import (
    compiled,
    exp2,
    fetch_add,
    get_float32,
    get_int32,
    get_int64,
    load,
    maximum_of,
    prefetch,
    put_int8,
    put_int64,
    splat,
    store,
)


@compiled
def gather_rows(path: VectorPath, row_element: Element, job: Any, scratch: Scratch, tile: Tile) -> None:
    """Copies the tile's queries into `scratch.rows`, head by head."""
    to = scratch.rows
    for head in range(tile.head, tile.head + tile.num_heads):
        for row in range(tile.row, tile.row + tile.num_rows):
            token = tile.first_token + row // job.group_size
            number = head * job.group_size + row % job.group_size
            address = job.query + token * job.query_token_bytes + number * job.query_head_bytes
            if job.query_code == 0:
                copy_row(path, FLOAT32, address, row_element, to, job.size)
            elif job.query_code == 1:
                copy_row(path, BFLOAT16, address, row_element, to, job.size)
            else:
                copy_row(path, FLOAT16, address, row_element, to, job.size)
            to += scratch.row_bytes


@compiled
def list_tokens(job: Any, request: int, segment: int, begin: int, end: int, listed: int) -> None:
    """Lists the addresses of the keys at `begin` to `end - 1` of a segment at `listed`, and of the values behind them.

    Places outside, up to the segment's size, repeat the nearest token: they are read in passing and not used.
    """
    table = job.block_table + 4 * request * job.block_table_width
    position = segment * SEGMENT + begin
    block, offset = position // job.block_size, position % job.block_size
    number = get_int32(table + 4 * block)
    key, value = 0, 0
    for token in range(begin, end):
        if offset == job.block_size:
            block, offset = block + 1, 0
            number = get_int32(table + 4 * block)
        key = job.keys + number * job.key_block_bytes + offset * job.key_token_bytes
        value = job.values + number * job.value_block_bytes + offset * job.value_token_bytes
        put_int64(listed + 8 * token, key)
        put_int64(listed + LIST_BYTES + 8 * token, value)
        offset += 1
    first_key, first_value = get_int64(listed + 8 * begin), get_int64(listed + LIST_BYTES + 8 * begin)
    for token in range(begin):
        put_int64(listed + 8 * token, first_key)
        put_int64(listed + LIST_BYTES + 8 * token, first_value)
    for token in range(end, SEGMENT):
        put_int64(listed + 8 * token, key)
        put_int64(listed + LIST_BYTES + 8 * token, value)


@compiled
def prefetch_rows(listed: int, offset: int, begin: int, end: int, num_bytes: int) -> None:
    """Asks for `num_bytes` of the rows `begin` to `end - 1` of a list."""
    for token in range(begin, end):
        at = get_int64(listed + 8 * token) + offset
        for line in range(0, num_bytes, LINE):
            prefetch(at + line)


@compiled
def score_rows(
    path: VectorPath,
    row_element: Element,
    element: Element,
    job: Any,
    scratch: Scratch,
    tile: Tile,
    head: int,
    seg: Segment,
) -> None:
    """Products of the rows of the tile's head number `head` with the listed keys, into `scratch.scores`.

    Meanwhile the values are fetched; and the keys too, unless the segment before did so.
    """
    offset, value_offset = (tile.head + head) * job.key_head_bytes, (tile.head + head) * job.value_head_bytes
    first_row = head * tile.num_rows
    for token in range(seg.begin // TILE_TOKENS * TILE_TOKENS, seg.end, TILE_TOKENS):
        if seg.is_first:
            ahead = min(token + AHEAD, SEGMENT)
            prefetch_rows(seg.listed, offset, ahead, min(ahead + TILE_TOKENS, seg.end), job.size * element.num_bytes)
        for group in range(0, tile.num_rows, TILE_ROWS):
            score_tile(
                path,
                row_element,
                element,
                min(tile.num_rows - group, TILE_ROWS),
                scratch.rows + (first_row + group) * scratch.row_bytes,
                scratch.row_bytes,
                seg.listed + 8 * token,
                offset,
                job.size,
                scratch.scores + 4 * ((first_row + group) * SEGMENT + token),
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
        offset, key_offset = (tile.head + head) * job.value_head_bytes, (tile.head + head) * job.key_head_bytes
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
def reach(job: Any, tile: Tile) -> tuple[int, int]:
    """The first and the last position that the tile's rows read."""
    first = first_position(job, tile.base_position + tile.row // job.group_size)
    return first, tile.base_position + (tile.row + tile.num_rows - 1) // job.group_size


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
            list_tokens(job, tile.request, segment, begin, end, listed)
        if segment + 1 < stop_segment:
            list_tokens(job, tile.request, segment + 1, 0, min(last + 1 - start - SEGMENT, SEGMENT), next_listed)
        else:
            next_listed = listed
        seg = Segment(begin, end, listed, next_listed, segment == first_segment)
        state = slot + segment // size * slot_bytes
        if segment == first_segment or segment % size == 0:
            clear_state(path, scratch, state, num_rows)
        for head in range(tile.num_heads):
            score_rows(path, row_element, element, job, scratch, tile, head, seg)
        weigh_rows(path, job, scratch, tile, segment, begin, end)
        merge_factors(path, scratch, num_rows, scratch.tops, scratch.sums, state, state + align(4 * num_rows))
        sum_values(path, element, job, scratch, tile, state, seg)
        if granule == 0 and (segment + 1 == stop_segment or (segment + 1) % size == 0):
            merge_states(path, scratch, state, scratch.total, num_rows)


@compiled
def share_of(job: Any, tile: Tile, part: Part, unit: int) -> tuple[int, int]:
    """The segments of unit number `unit`, from the first to behind the last."""
    first, last = reach(job, tile)
    begin, stop = first // SEGMENT, last // SEGMENT + 1
    if part.granule == 0:
        return begin, stop
    granule = begin // part.granule
    own_begin = (granule + unit * part.num_slots // part.num_units) * part.granule
    own_stop = (granule + (unit + 1) * part.num_slots // part.num_units) * part.granule
    return max(own_begin, begin), min(own_stop, stop)


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


@compiled
def write_rows(path: VectorPath, job: Any, scratch: Scratch, tile: Tile) -> None:
    """Divides the weighted sums of `scratch.total` by the sums of weights, sinks included, into the output."""
    num_heads, lines = job.num_kv_heads * job.group_size, scratch.total + 2 * align(4 * tile.num_heads * tile.num_rows)
    for row in range(tile.num_heads * tile.num_rows):
        number = tile.row + row % tile.num_rows
        head = (tile.head + row // tile.num_rows) * job.group_size + number % job.group_size
        factor = splat(path, row_factor(path, job, scratch, tile, row, head))
        line = lines + row * scratch.line_bytes
        for at in range(line, line + scratch.line_bytes, 4 * path.lanes):
            store(path, FLOAT32, at, load(path, FLOAT32, at) * factor)
        place = ((tile.first_token + number // job.group_size) * num_heads + head) * job.value_size
        if job.query_code == 0:
            copy_row(path, FLOAT32, line, FLOAT32, job.out + 4 * place, job.value_size)
        elif job.query_code == 1:
            copy_row(path, FLOAT32, line, BFLOAT16, job.out + 2 * place, job.value_size)
        else:
            copy_row(path, FLOAT32, line, FLOAT16, job.out + 2 * place, job.value_size)


@compiled
def row_factor(path: VectorPath, job: Any, scratch: Scratch, tile: Tile, row: int, head: int) -> float:
    """What the weighted sums of a row are multiplied with: 1 / sum of weights, where a sink takes part in the sum."""
    top = get_float32(scratch.total + 4 * row)
    total = get_float32(scratch.total + align(4 * tile.num_heads * tile.num_rows) + 4 * row)
    if job.sinks == 0:
        return 1.0 / total  # type: ignore[no-any-return]
    sink = get_float32(job.sinks + 4 * head) * LOG2_E
    largest = splat(path, max(top, sink))
    kept = maximum_of(exp2(splat(path, top) - largest))
    return kept / (total * kept + maximum_of(exp2(splat(path, sink) - largest)))  # type: ignore[no-any-return]


@compiled
def tile_of(job: Any, request: int, part: Part, unit: int) -> Tile:
    """The rows of unit number `unit` of a request. Later tiles of a prompt are longer and come first."""
    num_queries = num_queries_of(job, request)
    num_rows = num_queries * job.group_size
    first_token = get_int32(job.query_start + 4 * request)
    base = get_int32(job.seq_lens + 4 * request) - num_queries
    if part.tile_rows == 0:
        return Tile(request, first_token, base, 0, job.num_kv_heads, 0, num_rows)
    num_tiles = part.num_units // job.num_kv_heads
    row = (num_tiles - 1 - unit // job.num_kv_heads) * part.tile_rows
    return Tile(request, first_token, base, unit % job.num_kv_heads, 1, row, min(part.tile_rows, num_rows - row))


@compiled
def attend_unit(
    path: VectorPath,
    row_element: Element,
    element: Element,
    job: Any,
    scratch: Scratch,
    request: int,
    part: Part,
    unit: int,
    used_bytes: int,
) -> None:
    """Does unit number `unit` of a request; whoever does a split request's last unit joins its parts."""
    tile = tile_of(job, request, part, unit)
    slots = job.slots + used_bytes
    begin, stop = share_of(job, tile, part, unit)
    gather_rows(path, row_element, job, scratch, tile)
    attend_segments(path, row_element, element, job, scratch, tile, part.granule, slots, begin, stop)
    if part.granule > 0:
        counter = job.counters + 8 * request
        if fetch_add(counter, 1) < part.num_units - 1:
            return
        put_int64(counter, 0)
        join_parts(path, job, scratch, tile, part, slots)
    write_rows(path, job, scratch, tile)


@compiled
def clear_padding(job: Any) -> None:
    """Sets the output of tokens behind the last request's to 0."""
    num_bytes = job.num_kv_heads * job.group_size * job.value_size * (4 if job.query_code == 0 else 2)
    stop = job.num_tokens * num_bytes
    at = get_int32(job.query_start + 4 * job.num_requests) * num_bytes
    while at < stop:
        put_int8(job.out + at, 0)
        at += 1


@compiled
def attend_step(path: VectorPath, row_element: Element, element: Element, job: Any, address: int) -> None:
    """One thread's share of a step: takes units until none is left. `address` is the job's."""
    thread = fetch_add(address, 1)
    if thread == 0:
        clear_padding(job)
    scratch = scratch_of(job, thread)
    tile_rows, unit_work = measure(job)
    if job.num_requests == 0:
        return
    request, base, used_bytes = 0, 0, 0
    part = part_of(job, request, tile_rows, unit_work, used_bytes)
    while True:
        number = fetch_add(address + 8, 1)
        while number >= base + part.num_units:
            base += part.num_units
            used_bytes += slots_bytes_of(job, request, part)
            request += 1
            if request >= job.num_requests:
                return
            part = part_of(job, request, tile_rows, unit_work, used_bytes)
        attend_unit(path, row_element, element, job, scratch, request, part, number - base, used_bytes)
