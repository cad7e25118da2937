"""Block tables and slots, against a dictionary from (request, position) to block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv.specs import NULL_BLOCK, PAD_SLOT
from octavo.worker.block_table import BlockTable

MAX_BLOCKS = 200
NUM_ROWS = 4

BLOCK_IDS = st.lists(st.integers(0, 1000), max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, NUM_ROWS - 1), BLOCK_IDS),
        st.tuples(st.just("append"), st.dictionaries(st.integers(0, NUM_ROWS - 1), BLOCK_IDS), st.none()),
        st.tuples(st.just("move"), st.integers(0, NUM_ROWS - 1), st.integers(0, NUM_ROWS - 1)),
    ),
    max_size=20,
)


def obvious_slot(blocks: list[int], position: int, block_size: int) -> int:
    block = blocks[position // block_size]
    return PAD_SLOT if block == NULL_BLOCK else block * block_size + position % block_size


@settings(max_examples=40)
@given(operations=OPERATIONS, block_size=st.integers(1, 40), data=st.data())
def test_tables_and_slots_are_those_of_the_obvious_model(operations, block_size, data) -> None:
    table = BlockTable(num_rows=NUM_ROWS, block_size=block_size, max_blocks=MAX_BLOCKS)
    model: dict[int, list[int]] = {row: [] for row in range(NUM_ROWS)}
    for name, first, second in operations:
        if name == "set":
            table.set_row(first, second)
            model[first] = list(second)
        elif name == "move":
            table.move_row(first, second)
            model[second] = list(model[first])
        else:
            pairs = [(row, block) for row, blocks in first.items() for block in blocks]
            table.append([row for row, _ in pairs], [block for _, block in pairs])
            for row, block in pairs:
                model[row].append(block)
    for row, blocks in model.items():
        assert table.num_blocks[row] == len(blocks)
        assert table.take(np.array([row]), len(blocks)).tolist() == [blocks]
    places = [(row, position) for row, blocks in model.items() for position in range(len(blocks) * block_size)]
    if places:
        chosen = data.draw(st.lists(st.sampled_from(places), max_size=30))
        slots = table.slots(
            np.array([row for row, _ in chosen], dtype=np.int64), np.array([place for _, place in chosen], np.int64)
        )
        assert slots.tolist() == [obvious_slot(model[row], position, block_size) for row, position in chosen]


def test_slots_of_many_rows_at_once() -> None:
    table = BlockTable(num_rows=3, block_size=4, max_blocks=8)
    table.set_row(0, [5, 9])
    table.set_row(2, [NULL_BLOCK, 7])
    slots = table.slots(np.array([0, 0, 2, 2]), np.array([3, 4, 3, 6]))
    assert slots.dtype == np.int64
    assert slots.tolist() == [23, 36, PAD_SLOT, 30]


def test_the_array_grows_with_the_longest_row_and_keeps_the_others() -> None:
    table = BlockTable(num_rows=2, block_size=1, max_blocks=1000)
    table.set_row(0, [1, 2, 3])
    width = table.rows.shape[1]
    table.append([1] * (width + 1), list(range(width + 1)))
    assert width < table.rows.shape[1] <= 1000
    assert table.take(np.array([0]), 3).tolist() == [[1, 2, 3]]
    assert table.take(np.array([1]), width + 1).tolist() == [list(range(width + 1))]


def test_a_row_beyond_the_longest_request_is_refused_and_nothing_changes() -> None:
    table = BlockTable(num_rows=2, block_size=16, max_blocks=3)
    table.set_row(0, [1, 2])
    with pytest.raises(ValueError, match="a row of 4 blocks is longer than the longest request, 3 blocks"):
        table.append([1, 0, 0], [9, 3, 4])
    assert table.num_blocks.tolist() == [2, 0]


def test_what_is_taken_is_contiguous_whatever_its_width() -> None:
    table = BlockTable(num_rows=3, block_size=16, max_blocks=100)
    assert all(table.take(np.array([2, 0]), width).flags.c_contiguous for width in (1, 5, 64))
