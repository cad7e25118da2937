"""Copying rows of numbers from one element type to another."""

from __future__ import annotations

from octavo.attention.numba_emit import Element, VectorPath
from octavo.attention.numba_vectors import compiled, load, load_some, store, store_some

CODES = {"float32": 0, "bfloat16": 1, "float16": 2}
"""Numbers that stand for a dtype known only at run time."""


@compiled
def copy_row(path: VectorPath, source: Element, address: int, target: Element, to: int, size: int) -> None:
    """Converts `size` numbers, rounding to nearest even."""
    done = 0
    while done + path.lanes <= size:
        store(path, target, to + done * target.num_bytes, load(path, source, address + done * source.num_bytes))
        done += path.lanes
    if done < size:
        some = load_some(path, source, address + done * source.num_bytes, size - done)
        store_some(path, target, to + done * target.num_bytes, some, size - done)
