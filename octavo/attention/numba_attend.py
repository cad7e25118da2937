"""Attention of one step: units of work are handed out to threads, and each unit's rows are gathered, attended, written.

`attend_step` knows nothing of dtypes. It calls a unit's kernel by the address that the job holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32, LINE, Element, VectorPath
from octavo.attention.numba_job import (
    SEGMENT,
    Part,
    Scratch,
    Tile,
    align,
    measure,
    num_queries_of,
    part_of,
    reach,
    scratch_of,
    slots_bytes_of,
)
from octavo.attention.numba_memory import call_kernel, get_float32, get_int32, put_int8, put_int64
from octavo.attention.numba_packed import attend_packed
from octavo.attention.numba_rows import copy_row
from octavo.attention.numba_segments import attend_segments, join_parts
from octavo.attention.numba_softmax import LOG2_E
from octavo.attention.numba_vectors import address_of, compiled, exp2, fetch_add, load, maximum_of, splat, store
from octavo.attention.numba_wide import attend_wide

UNIT_FIELDS = ("thread", "request", "number", "slots", "num_units", "tile_rows", "granule", "num_slots")
"""int64 fields of a unit. `number` counts within its request, `slots` is the address of the request's first slot; the
last four are its `Part`."""

UNIT = np.dtype([(name, np.int64) for name in UNIT_FIELDS])


@compiled
def gather_rows(path: VectorPath, row_element: Element, job: Any, scratch: Scratch, tile: Tile) -> None:
    """Copies the tile's queries into `scratch.rows`, head by head."""
    to = scratch.rows
    for head in range(tile.head, tile.head + tile.num_heads):
        for row in range(tile.row, tile.row + tile.num_rows):
            token = tile.first_token + row // job.group_size
            number = head * job.group_size + row % job.group_size
            address = job.query + token * job.query_token_bytes + number * job.query_head_bytes
            for at in range(to + job.size * row_element.num_bytes // LINE * LINE, to + scratch.row_bytes, LINE):
                for part in range(at, at + LINE, 4 * path.lanes):
                    store(path, FLOAT32, part, splat(path, 0.0))
            if job.query_code == 0:
                copy_row(path, FLOAT32, address, row_element, to, job.size)
            elif job.query_code == 1:
                copy_row(path, BFLOAT16, address, row_element, to, job.size)
            else:
                copy_row(path, FLOAT16, address, row_element, to, job.size)
            to += scratch.row_bytes


@compiled
def write_rows(path: VectorPath, job: Any, scratch: Scratch, tile: Tile) -> None:
    """Divides the weighted sums of `scratch.total` by the sums of weights, sinks included, into the output."""
    num_heads, lines = (
        job.num_kv_heads * job.group_size,
        scratch.total + 2 * align(4 * tile.num_heads * tile.num_rows),
    )
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
def attend_few_rows(path: VectorPath, row_element: Element, element: Element, job: Any, unit: Any) -> None:
    """Does a unit segment by segment; whoever does a split request's last unit joins its parts."""
    scratch, part = scratch_of(job, unit.thread), Part(unit.num_units, unit.tile_rows, unit.granule, unit.num_slots)
    tile = tile_of(job, unit.request, part, unit.number)
    begin, stop = share_of(job, tile, part, unit.number)
    gather_rows(path, row_element, job, scratch, tile)
    attend_segments(path, row_element, element, job, scratch, tile, part.granule, unit.slots, begin, stop)
    if part.granule > 0:
        counter = job.counters + 8 * unit.request
        if fetch_add(counter, 1) < part.num_units - 1:
            return
        put_int64(counter, 0)
        join_parts(path, job, scratch, tile, part, unit.slots)
    write_rows(path, job, scratch, tile)


@compiled
def attend_packed_rows(path: VectorPath, job: Any, unit: Any) -> None:
    """Does a prefill's unit over packed keys and values, all in bfloat16."""
    scratch, part = scratch_of(job, unit.thread), Part(unit.num_units, unit.tile_rows, unit.granule, unit.num_slots)
    tile = tile_of(job, unit.request, part, unit.number)
    gather_rows(path, BFLOAT16, job, scratch, tile)
    attend_packed(path, job, scratch, tile)
    write_rows(path, job, scratch, tile)


@compiled
def attend_wide_rows(path: VectorPath, heights: tuple[int, int], element: Element, job: Any, unit: Any) -> None:
    """Does a prefill's unit over widened keys and values."""
    scratch, part = scratch_of(job, unit.thread), Part(unit.num_units, unit.tile_rows, unit.granule, unit.num_slots)
    tile = tile_of(job, unit.request, part, unit.number)
    gather_rows(path, FLOAT32, job, scratch, tile)
    attend_wide(path, heights, element, job, scratch, tile)
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
def attend_step(job: Any) -> None:
    """One thread's share of a step: takes units until none is left."""
    thread = fetch_add(address_of(job), 1)
    if thread == 0:
        clear_padding(job)
    if job.num_requests == 0:
        return
    unit = job.scratch + thread * job.scratch_bytes
    tile_rows, unit_work = measure(job)
    request, base, used_bytes = 0, 0, 0
    part = part_of(job, request, tile_rows, unit_work, used_bytes)
    while True:
        number = fetch_add(address_of(job) + 8, 1)
        while number >= base + part.num_units:
            base += part.num_units
            used_bytes += slots_bytes_of(job, request, part)
            request += 1
            if request >= job.num_requests:
                return
            part = part_of(job, request, tile_rows, unit_work, used_bytes)
        put_int64(unit, thread)
        put_int64(unit + 8, request)
        put_int64(unit + 16, number - base)
        put_int64(unit + 24, job.slots + used_bytes)
        for at in range(4):
            put_int64(unit + 32 + 8 * at, part[at])
        call_kernel(job.few_rows if part.tile_rows == 0 else job.many_rows, address_of(job), unit)
