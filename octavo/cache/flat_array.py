"""Arrays of whole numbers that are read and written in two ways: one number at a time, and many at once.

`array` is the faster one for single numbers, numpy for many. Both look at the same memory, so an array cannot change
its length while a view of it is in use.

The arrays are of the unsigned kinds because these take an int three times as fast; nothing negative is ever in them.
Lists of ids have 64 bits because numpy indexes with those without converting them first.
"""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = "array[int]"
"""Numbers of blocks or nodes."""

IdView: TypeAlias = npt.NDArray[np.int64]

MANY = 40
"""From this many numbers on, one pass of numpy beats a loop (measured: equal at 32 to 64)."""


def no_ids() -> Ids:
    """An empty one."""
    return array("Q")


def view(ids: Ids) -> IdView:
    """`ids` for numpy, without a copy."""
    return np.frombuffer(ids, dtype=np.int64)


def ids_of(numbers: npt.NDArray[Any]) -> Ids:
    """A copy of `numbers`."""
    return array("Q", numbers.astype(np.int64, copy=False).tobytes())


def ids_from(start: int, stop: int) -> Ids:
    """start, start + 1, ... stop - 1."""
    return array("Q", np.arange(start, stop).tobytes())


def repeated(number: int, count: int) -> Ids:
    """`number`, `count` times."""
    return array("Q", (number,)) * count


def zeros(count: int) -> tuple[array[int], npt.NDArray[np.int32]]:
    """An array of 32-bit zeros, and its view."""
    made = array("I", (0,)) * count
    return made, np.frombuffer(made, dtype=np.int32)


def grown(old: npt.NDArray[np.int32], count: int) -> tuple[array[int], npt.NDArray[np.int32]]:
    """As `zeros`, with the numbers of `old` in front: room for `count`, and for half as many again as there were."""
    made, seen = zeros(max(count, len(old) + len(old) // 2))
    seen[: len(old)] = old
    return made, seen
