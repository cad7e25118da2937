"""Softmax that runs over segments: scores become weights, and what was summed before is rescaled.

All scores are kept in units of log 2, so that weights are powers of 2. A **state** is `[largest score][sum of weights]
[weighted sums]` of its rows, see `state_bytes`.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.attention.numba_emit import FLOAT32, VectorPath
from octavo.attention.numba_job import SEGMENT, Scratch, Tile, align, first_position
from octavo.attention.numba_memory import get_float32, put_float32
from octavo.attention.numba_vectors import (
    choose,
    compiled,
    exp2,
    fma,
    load,
    maximum,
    maximum_of,
    ramp,
    splat,
    store,
    sum_of,
)

LOWEST = -1e30
"""A largest score below all scores; finite, so that differences of it are numbers."""
LOG2_E = math.log2(math.e)
MINUS_INFINITY = -math.inf


@compiled
def log2_scores(path: VectorPath, job: Any, address: int) -> Any:
    """One vector of products as scores: scaled, capped, in units of log 2."""
    products = load(path, FLOAT32, address)
    if job.soft_cap == 0.0:
        return products * splat(path, job.scale * LOG2_E)
    # tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|), and the sign of x.
    inner = products * splat(path, job.scale / job.soft_cap)
    negative = inner < splat(path, 0.0)
    size = choose(negative, splat(path, 0.0) - inner, inner)
    power = exp2(size * splat(path, -2.0 * LOG2_E))
    outer = (splat(path, 1.0) - power) / (splat(path, 1.0) + power) * splat(path, job.soft_cap * LOG2_E)
    return choose(negative, splat(path, 0.0) - outer, outer)


@compiled
def slope_of(job: Any, tile: Tile, row: int) -> float:
    """What a row's scores lose per token of distance, in units of log 2; 0 where there are no slopes."""
    if job.slopes == 0:
        return 0.0
    head = (tile.head + row // tile.num_rows) * job.group_size + (tile.row + row % tile.num_rows) % job.group_size
    return get_float32(job.slopes + 4 * head) * LOG2_E  # type: ignore[no-any-return]


@compiled
def distances(path: VectorPath, token: int, place: int, slope: float) -> Any:
    """What one vector of scores, from offset `token` on, gains when the row's query stands at offset `place`."""
    return ramp(path, token - place) * splat(path, slope)


@compiled
def weigh_row(
    path: VectorPath, job: Any, line: int, begin: int, end: int, low: int, high: int, place: int, slope: float
) -> tuple[float, float]:
    """Turns the products at `begin` to `end - 1` of one row into weights; those outside `low` to `high - 1` become 0.

    The row's query stands at offset `place`. Returns the largest score and the sum of the weights, which are powers of
    2 of the difference to it.
    """
    first, lanes = begin // path.lanes * path.lanes, path.lanes
    top = splat(path, LOWEST)
    for token in range(first, end, lanes):
        scores = log2_scores(path, job, line + 4 * token)
        if job.slopes != 0:
            scores = scores + distances(path, token, place, slope)
        if token < low or token + lanes > high:
            number = ramp(path, token)
            scores = choose(number < splat(path, low), splat(path, MINUS_INFINITY), scores)
            scores = choose(number < splat(path, high), scores, splat(path, MINUS_INFINITY))
        store(path, FLOAT32, line + 4 * token, scores)
        top = maximum(scores, top)
    largest = maximum_of(top)
    total = splat(path, 0.0)
    for token in range(first, end, lanes):
        weights = exp2(load(path, FLOAT32, line + 4 * token) - splat(path, largest))
        store(path, FLOAT32, line + 4 * token, weights)
        total = total + weights
    return largest, sum_of(total)


@compiled
def weigh_rows(path: VectorPath, job: Any, scratch: Scratch, tile: Tile, segment: int, begin: int, end: int) -> None:
    """Weights of all rows; their largest scores and sums go to `scratch.tops` and `scratch.sums`."""
    start = segment * SEGMENT
    for row in range(tile.num_heads * tile.num_rows):
        position = tile.base_position + (tile.row + row % tile.num_rows) // job.group_size
        place = position - start
        low, high = (max(first_position(job, position) - start, begin), min(place + 1, end))
        line = scratch.scores + 4 * row * SEGMENT
        slope = slope_of(job, tile, row)
        largest, total = weigh_row(path, job, line, begin, end, low, high, place, slope)
        put_float32(scratch.tops + 4 * row, largest)
        put_float32(scratch.sums + 4 * row, total)


@compiled
def merge_factors(
    path: VectorPath, scratch: Scratch, num_rows: int, tops: int, sums: int, to_tops: int, to_sums: int
) -> None:
    """Folds one softmax's largest scores and sums into another's.

    Leaves in `scratch.keep` and `scratch.take` what each one's weighted sums are to be multiplied with.
    """
    for row in range(0, num_rows, path.lanes):
        at = 4 * row
        old, new = load(path, FLOAT32, to_tops + at), load(path, FLOAT32, tops + at)
        top = maximum(old, new)
        keep, take = exp2(old - top), exp2(new - top)
        kept = load(path, FLOAT32, to_sums + at) * keep
        store(path, FLOAT32, to_tops + at, top)
        store(path, FLOAT32, to_sums + at, fma(load(path, FLOAT32, sums + at), take, kept))
        store(path, FLOAT32, scratch.keep + at, keep)
        store(path, FLOAT32, scratch.take + at, take)


@compiled
def clear_state(path: VectorPath, scratch: Scratch, state: int, num_rows: int) -> None:
    """Nothing attended yet."""
    vector = align(4 * num_rows)
    for at in range(0, vector, 4 * path.lanes):
        store(path, FLOAT32, state + at, splat(path, LOWEST))
    for at in range(vector, 2 * vector + num_rows * scratch.line_bytes, 4 * path.lanes):
        store(path, FLOAT32, state + at, splat(path, 0.0))


@compiled
def merge_states(path: VectorPath, scratch: Scratch, source: int, target: int, num_rows: int) -> None:
    """Folds the softmax `source` into `target`, which covers earlier positions."""
    vector = align(4 * num_rows)
    merge_factors(path, scratch, num_rows, source, source + vector, target, target + vector)
    for row in range(num_rows):
        keep, take = (
            splat(path, get_float32(scratch.keep + 4 * row)),
            splat(path, get_float32(scratch.take + 4 * row)),
        )
        line = 2 * vector + row * scratch.line_bytes
        for at in range(line, line + scratch.line_bytes, 4 * path.lanes):
            kept = load(path, FLOAT32, target + at) * keep
            store(path, FLOAT32, target + at, fma(load(path, FLOAT32, source + at), take, kept))
