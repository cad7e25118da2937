"""What lies between the parts of a decoder layer, in one pass over each row:

    joined = residual + round(norm(rows) * multiplier)      the norm behind a part, where there is one
    out = norm(joined)                                      the norm before the next part, where there is one

Each sum, norm and product is rounded to the element where separate operators would round it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from octavo.attention.numba_emit import FLOAT32, Element, VectorPath
from octavo.attention.numba_memory import JobType
from octavo.attention.numba_vectors import address_of, compiled, fetch_add, fma, rounded, splat, sum_of
from octavo.models.modules.row_kernels import give, kernel_address, take

NORM_JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            "num_units_begun",
            "rows",
            "row_bytes",
            "num_rows",
            "out",
            "out_bytes",
            "joined",
            "joined_bytes",
            "adds",
            "size",
            "first_factors",
            "first_rounds",
            "last_factors",
            "last_rounds",
        )
    ]
    + [(name, np.float64) for name in ("first_epsilon", "last_epsilon", "multiplier")]
)
"""`joined` is where the sums go; they are added to what is there where `adds` is 1. `first_factors`, `last_factors`:
float32 [size] of the norm before the sum and of the one behind it, or 0 where there is none (`out` is not written where
there is no last one); `first_rounds`, `last_rounds`: 1 where a row is rounded before it is multiplied by its factors.
int64 unless named otherwise; addresses and strides are bytes."""


@compiled
def scale_of(squares: Any, size: int, epsilon: float) -> Any:
    """1 / root mean square, of the sums of squares."""
    return np.float32(1) / np.sqrt(sum_of(squares) / np.float32(size) + np.float32(epsilon))


@compiled
def scaled(
    path: VectorPath, element: Element, numbers: Any, scale: Any, factors: int, place: int, count: int, rounds: int
) -> Any:
    """`count` numbers of a row from `place` on, normed."""
    numbers = numbers * splat(path, scale)
    if rounds != 0:
        numbers = rounded(element, numbers)
    return rounded(element, numbers * take(path, FLOAT32, factors + 4 * place, count))


@compiled
def join_row(path: VectorPath, element: Element, job: Any, row: int, joined: int) -> Any:
    """Adds a row to its residual; the sums of squares of what that makes."""
    width = element.num_bytes
    scale = np.float32(1)
    if job.first_factors != 0:
        squares = splat(path, 0.0)
        for i in range(0, job.size, path.lanes):
            numbers = take(path, element, row + i * width, job.size - i)
            squares = fma(numbers, numbers, squares)
        scale = scale_of(squares, job.size, job.first_epsilon)
    squares = splat(path, 0.0)
    for i in range(0, job.size, path.lanes):
        count = job.size - i
        numbers = take(path, element, row + i * width, count)
        if job.first_factors != 0:
            numbers = scaled(path, element, numbers, scale, job.first_factors, i, count, job.first_rounds)
        if job.multiplier != 1.0:
            numbers = rounded(element, numbers * splat(path, np.float32(job.multiplier)))
        if job.adds != 0:
            numbers = rounded(element, numbers + take(path, element, joined + i * width, count))
        give(path, element, joined + i * width, numbers, count)
        squares = fma(numbers, numbers, squares)
    return squares


@compiled
def join_rows(path: VectorPath, element: Element, job: Any) -> None:
    """One thread's share of the rows."""
    width = element.num_bytes
    while True:
        number = fetch_add(address_of(job), 1)
        if number >= job.num_rows:
            return
        joined = job.joined + number * job.joined_bytes
        squares = join_row(path, element, job, job.rows + number * job.row_bytes, joined)
        if job.last_factors != 0:
            out = job.out + number * job.out_bytes
            scale = scale_of(squares, job.size, job.last_epsilon)
            for i in range(0, job.size, path.lanes):
                count = job.size - i
                numbers = take(path, element, joined + i * width, count)
                numbers = scaled(path, element, numbers, scale, job.last_factors, i, count, job.last_rounds)
                give(path, element, out + i * width, numbers, count)


@cache
def norm_kernel(path: VectorPath, element: Element) -> int:
    """Address of the C function; its argument is a `NORM_JOB`."""

    def norm(job: Any) -> None:
        join_rows(path, element, job)

    return kernel_address(JobType("NormJob", NORM_JOB), norm)
