"""Loops of a step's bookkeeping, against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.specs import PAD_SLOT
from octavo.worker.step_kernels import append_ids, flatten_rows, slots_of

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3)), max_size=6)
"""For each row: computed tokens, tokens to compute, tokens known beyond those."""


@given(rows=ROWS)
@settings(max_examples=50)
def test_flattening(rows: list[tuple[int, int, int]]) -> None:
    counts = np.array([count for _, count, _ in rows], dtype=np.int64)
    computed = np.array([first for first, _, _ in rows] + [9], dtype=np.int64)
    known = np.array([sum(row) for row in rows] + [9], dtype=np.int64)
    history = np.arange(7 * 12, dtype=np.int32).reshape(7, 12)
    found = [part.tolist() for part in flatten_rows(counts, computed, known, history)]
    active = [row for row, (_, count, _) in enumerate(rows) if count]
    places = [(row, rows[row][0] + i) for row in active for i in range(rows[row][1])]
    assert found == [
        active,
        [sum(rows[row][1] for row in active[:i]) for i in range(len(active) + 1)],
        [rows[row][0] + rows[row][1] for row in active],
        [row for row, _ in places],
        [position for _, position in places],
        [int(history[place]) for place in places],
        [i for i, row in enumerate(active) if rows[row][2] == 0],
    ]


def test_appending_interleaved_rows_keeps_each_rows_order() -> None:
    table, num_blocks = np.zeros((3, 4), np.int32), np.array([1, 0, 0], np.int32)
    assert append_ids(table, num_blocks, np.array([0, 2, 0, 2]), np.array([5, 6, 7, 8], np.int32)) == 3
    assert num_blocks.tolist() == [3, 0, 2]
    assert table.tolist() == [[0, 5, 7, 0], [0, 0, 0, 0], [6, 8, 0, 0]]


def test_appending_beyond_the_width_changes_nothing() -> None:
    table, num_blocks = np.zeros((2, 2), np.int32), np.array([1, 0], np.int32)
    assert append_ids(table, num_blocks, np.array([1, 0, 0]), np.array([5, 6, 7], np.int32)) == 3
    assert num_blocks.tolist() == [1, 0]
    assert not table.any()


def test_appending_nothing() -> None:
    assert (
        append_ids(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32)) == 0
    )


def test_slots() -> None:
    table = np.array([[37, 0, 2**27]], dtype=np.int32)
    positions = np.array([7, 16, 47])
    slots = slots_of(table, 16, np.zeros(3, np.int64), positions)
    assert slots.dtype == np.int64
    assert slots.tolist() == [599, PAD_SLOT, 2**27 * 16 + 15], "slots beyond 32 bits are right"
