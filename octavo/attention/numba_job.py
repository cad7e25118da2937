"""What a kernel is told (`JOB`), how a step is cut into units of work, and where a thread keeps its numbers.

    request ──> units          each done by one thread, in any order
      few rows (decode):       one unit for all KV heads, or several that take turns at the segments of its positions
      many rows (prefill):     one unit per KV head and tile of rows; row = query * group_size + head within its group

A **segment** is `SEGMENT` positions that start at a multiple of it; a **span** is `SPAN_SEGMENTS` segments. A segment
is attended on its own, then folded into its span, each span into the result, always in the order of positions. So a
query's sums are the same whatever else is in the step, however its prompt was chunked, however many threads there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from octavo.attention.numba_emit import LINE
from octavo.attention.numba_memory import get_int32, get_int64, put_int64
from octavo.attention.numba_vectors import compiled
from octavo.attention.numba_write import CACHE_FIELDS

SEGMENT = 64
"""Positions of a segment."""
PACKED_SEGMENT = 128
"""Positions whose keys and values are packed at a time."""
SPAN_SEGMENTS = 32
"""Segments of a span."""
SMALL_ROWS = 16
"""Most rows of a request (per KV head) that one unit takes for all KV heads; a single query's rows may be more."""
MOST_SMALL_ROWS = 64
"""Most rows of a single query, per KV head, that count as few."""
TILE_ROWS = 96
"""Rows of a prefill's tile, per KV head, where keys and values are widened for it."""
PACKED_TILE_ROWS = 128
"""The same where keys and values are packed for a tile."""
SHORT_TILES = 4
"""Tiles are so many times shorter where whole ones would leave threads without work."""
UNITS_PER_THREAD = 4
"""Units to aim at, so that threads finish at about the same time; a lone request is cut into one for each."""
SLOTS_PER_THREAD = 128
"""Partial results that split requests may hold between them, at most."""

STEP_FIELDS = (
    "num_threads_begun",
    "num_units_begun",
    "query",
    "query_token_bytes",
    "query_head_bytes",
    "out",
    "num_tokens",
    "query_start",
    "seq_lens",
    "block_table",
    "block_table_width",
    "num_requests",
    "counters",
)
"""int64 fields that change from call to call, first in a job. Addresses, unless named otherwise. The first two count up
while a kernel runs. `counters` holds, per request, how many units of a split one are done; 0 between calls."""

LAYER_FIELDS = (
    *CACHE_FIELDS,
    "group_size",
    "window",
    "chunk",
    "sinks",
    "slopes",
    "query_code",
    "tile_rows",
    "num_threads",
    "few_rows",
    "many_rows",
    "scratch",
    "scratch_bytes",
    "slots",
    "slots_bytes",
)
"""int64 fields that a layer keeps. `window`, `chunk`, `sinks` and `slopes` are 0 where there is none; `few_rows` and
`many_rows` are kernels; `scratch_bytes` is one thread's share of `scratch`; `slots` holds partial results."""

JOB = np.dtype(
    [(name, np.int64) for name in STEP_FIELDS + LAYER_FIELDS] + [("scale", np.float64), ("soft_cap", np.float64)]
)
"""`scale` multiplies scores; `soft_cap` is 0 where there is none."""

AHEAD = 16
"""How many tokens before its turn a key is asked for."""
LIST_BYTES = 8 * PACKED_SEGMENT


class Tile(NamedTuple):
    """The rows of one unit: rows `row` to `row + num_rows - 1` of each of `num_heads` KV heads from `head` on."""

    request: int
    first_token: int
    """The request's first token of the step."""
    base_position: int
    """Where that token stands."""
    head: int
    num_heads: int
    row: int
    num_rows: int


class Scratch(NamedTuple):
    """Addresses of one thread's working memory."""

    rows: int
    row_bytes: int
    lists: int
    """Two lists of addresses, each of a segment's keys and, behind them, of its values."""
    scores: int
    tops: int
    sums: int
    keep: int
    take: int
    span: int
    total: int
    packed: int
    """A segment's keys or values as `numba_packed` or `numba_wide` wants them."""
    line_bytes: int
    """From one row's weighted sum to the next."""


class Segment(NamedTuple):
    """The segment under way."""

    begin: int
    """Offset of the first position read."""
    end: int
    """Offset behind the last position read."""
    listed: int
    """Address of the list of its keys' and values' addresses."""
    next_listed: int
    """The next segment's; the same one where there is none."""
    is_first: bool
    """Whether the unit begins with it, so that nothing has fetched its keys yet."""


class Part(NamedTuple):
    """How one request is cut."""

    num_units: int
    tile_rows: int
    """0 for a request of few rows."""
    granule: int
    """Segments of one partial result; 0 where the request is not split."""
    num_slots: int


@compiled
def align(num_bytes: int) -> int:
    """`num_bytes` rounded up to whole cache lines."""
    return (num_bytes + LINE - 1) // LINE * LINE


@compiled
def line_bytes(value_size: int) -> int:
    """Bytes of one row of weighted sums: whole vectors, and whole blocks of 32 columns."""
    return align(2 * value_size) * 2


@compiled
def state_bytes(num_rows: int, value_size: int) -> int:
    """Bytes of a running softmax of `num_rows` rows: [largest score][sum of weights][weighted sums]."""
    return 2 * align(4 * num_rows) + num_rows * line_bytes(value_size)


@compiled
def state_rows(num_kv_heads: int, group_size: int, tile_rows: int) -> int:
    """Most rows of any unit, all heads together."""
    if group_size <= MOST_SMALL_ROWS:
        return max(tile_rows, num_kv_heads * max(group_size, SMALL_ROWS))
    return tile_rows


@compiled
def packed_bytes(size: int, value_size: int) -> int:
    """Bytes of `PACKED_SEGMENT` packed or `SEGMENT` widened keys or values."""
    return 2 * PACKED_SEGMENT * max(align(size), align(value_size))


@compiled
def scratch_bytes(num_kv_heads: int, group_size: int, size: int, value_size: int, tile_rows: int) -> int:
    """Bytes of one thread's working memory."""
    num_rows = state_rows(num_kv_heads, group_size, tile_rows)
    fixed = 4 * LIST_BYTES + num_rows * 4 * PACKED_SEGMENT + 4 * align(4 * num_rows)
    fixed += LINE + packed_bytes(size, value_size)
    return fixed + num_rows * align(4 * size) + 2 * align(state_bytes(num_rows, value_size))


@compiled
def scratch_of(job: Any, thread: int) -> Scratch:
    """The addresses of thread number `thread`."""
    num_rows = state_rows(job.num_kv_heads, job.group_size, job.tile_rows)
    row_bytes = align(4 * job.size)
    rows = job.scratch + thread * job.scratch_bytes + LINE
    lists = rows + num_rows * row_bytes
    scores = lists + 4 * LIST_BYTES
    tops = scores + num_rows * 4 * PACKED_SEGMENT
    vector = align(4 * num_rows)
    span = tops + 4 * vector
    total = span + align(state_bytes(num_rows, job.value_size))
    return Scratch(
        rows,
        row_bytes,
        lists,
        scores,
        tops,
        tops + vector,
        tops + 2 * vector,
        tops + 3 * vector,
        span,
        total,
        total + align(state_bytes(num_rows, job.value_size)),
        line_bytes(job.value_size),
    )


@compiled
def first_position(job: Any, position: int) -> int:
    """The first position that the query at `position` reads."""
    first = 0
    if job.window > 0:
        first = max(first, position - job.window + 1)
    if job.chunk > 0:
        first = max(first, position // job.chunk * job.chunk)
    return first


@compiled
def num_queries_of(job: Any, request: int) -> int:
    """Queries of a request in this step."""
    start = job.query_start + 4 * request
    return get_int32(start + 4) - get_int32(start)  # type: ignore[no-any-return]


@compiled
def num_segments_of(job: Any, request: int) -> int:
    """Segments that the request's queries read between them."""
    last = get_int32(job.seq_lens + 4 * request) - 1
    first = first_position(job, last - num_queries_of(job, request) + 1)
    return last // SEGMENT - first // SEGMENT + 1  # type: ignore[no-any-return]


@compiled
def is_small(job: Any, num_queries: int) -> bool:
    """Whether one unit takes all KV heads of a request."""
    num_rows = num_queries * job.group_size
    return num_rows <= SMALL_ROWS or (num_queries == 1 and num_rows <= MOST_SMALL_ROWS)


@compiled
def work_of(job: Any, request: int) -> int:
    """About how long the request takes, in rows of a segment."""
    num_queries = num_queries_of(job, request)
    num_rows = max(num_queries * job.group_size, 4)
    return num_rows * job.num_kv_heads * num_segments_of(job, request)  # type: ignore[no-any-return]


@compiled
def measure(job: Any) -> tuple[int, int]:
    """(rows of a prefill tile, work that a unit should not exceed) of the step."""
    num_units, work = 0, 0
    for request in range(job.num_requests):
        num_queries = num_queries_of(job, request)
        if num_queries > 0:
            work += work_of(job, request)
            if not is_small(job, num_queries):
                num_units += job.num_kv_heads * (num_queries * job.group_size // job.tile_rows + 1)
    wanted = UNITS_PER_THREAD * job.num_threads
    tile_rows = job.tile_rows if num_units >= wanted else job.tile_rows // SHORT_TILES
    return tile_rows, work // (job.num_threads if job.num_requests == 1 else wanted) + 1


@compiled
def part_of(job: Any, request: int, tile_rows: int, unit_work: int, used_bytes: int) -> Part:
    """How `request` is cut, when partial results of requests before it take `used_bytes`."""
    num_queries = num_queries_of(job, request)
    if num_queries <= 0:
        return Part(0, 0, 0, 0)
    num_rows = num_queries * job.group_size
    if not is_small(job, num_queries):
        return Part(job.num_kv_heads * ((num_rows + tile_rows - 1) // tile_rows), tile_rows, 0, 0)
    num_splits = min((work_of(job, request) + unit_work - 1) // unit_work, num_segments_of(job, request))
    if job.num_threads == 1 or num_splits <= 1:
        return Part(1, 0, 0, 0)
    last = get_int32(job.seq_lens + 4 * request) - 1
    first = first_position(job, last - num_queries + 1)
    granule = SPAN_SEGMENTS
    num_slots = last // (SEGMENT * granule) - first // (SEGMENT * granule) + 1
    if num_slots < 2 * num_splits:
        granule, num_slots = 1, last // SEGMENT - first // SEGMENT + 1
    slot_bytes = align(state_bytes(num_rows * job.num_kv_heads, job.value_size))
    if used_bytes + num_slots * slot_bytes > job.slots_bytes:
        return Part(1, 0, 0, 0)
    return Part(min(num_splits, num_slots), 0, granule, num_slots)


@compiled
def slots_bytes_of(job: Any, request: int, part: Part) -> int:
    """Bytes of a request's partial results."""
    num_rows = num_queries_of(job, request) * job.group_size * job.num_kv_heads
    return part.num_slots * align(state_bytes(num_rows, job.value_size))


@compiled
def reach(job: Any, tile: Tile) -> tuple[int, int]:
    """The first and the last position that the tile's rows read."""
    first = first_position(job, tile.base_position + tile.row // job.group_size)
    return first, tile.base_position + (tile.row + tile.num_rows - 1) // job.group_size


@compiled
def list_tokens(job: Any, request: int, start: int, begin: int, end: int, size: int, listed: int) -> None:
    """Lists the addresses of the keys at positions `start + begin` to `start + end - 1`, and of the values behind them.

    Places outside, from 0 to `size - 1`, repeat the nearest token: they are read in passing and not used.
    """
    table = job.block_table + 4 * request * job.block_table_width
    position = start + begin
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
    first_key, first_value = (get_int64(listed + 8 * begin), get_int64(listed + LIST_BYTES + 8 * begin))
    for token in range(begin):
        put_int64(listed + 8 * token, first_key)
        put_int64(listed + LIST_BYTES + 8 * token, first_value)
    for token in range(end, size):
        put_int64(listed + 8 * token, key)
        put_int64(listed + LIST_BYTES + 8 * token, value)
