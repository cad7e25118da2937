from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvariantError
from octavo.kv.specs import ENDLESS
from octavo.worker.state_steps import Run, batches_of_runs, runs_of_step


def runs(tables: list[list[int]], block_size: int, spans: list[tuple[int, int]]) -> list[Run]:
    """The runs of a step that takes request i, with blocks `tables[i]`, from `spans[i][0]` tokens to `spans[i][1]`."""
    width = max(map(len, tables))
    table = np.array([row + [0] * (width - len(row)) for row in tables], dtype=np.int32)
    counts = [stop - start for start, stop in spans]
    starts = np.array([0, *np.cumsum(counts)], dtype=np.int32)
    return runs_of_step(table, block_size, starts, np.array([stop for _, stop in spans], dtype=np.int32))


def test_a_step_is_cut_where_its_table_holds_a_block() -> None:
    assert runs([[7, 5, 0, 9]], 4, [(6, 15)]) == [Run(0, 2, 5, 5), Run(2, 7, 5, 9)]
    assert runs([[7, 5, 6, 9]], 4, [(6, 15)]) == [Run(0, 2, 5, 5), Run(2, 4, 5, 6), Run(6, 3, 6, 9)]


def test_a_block_that_moves_on_is_read_and_written() -> None:
    assert runs([[7, 5, 0, 5]], 4, [(6, 15)]) == [Run(0, 9, 5, 5)]
    assert runs([[0, 5, 0, 5]], 4, [(8, 15)]) == [Run(0, 7, 5, 5)]
    assert runs([[0, 5, 5]], 4, [(8, 9)]) == [Run(0, 1, 5, 5)]
    (batch,) = batches_of_runs(runs([[7, 5, 0, 5]], 4, [(6, 15)]))
    assert batch.reads is not None
    assert (batch.reads.tolist(), batch.writes.tolist()) == ([5], [5])


def test_a_request_begins_without_a_state() -> None:
    assert runs([[3]], 4, [(0, 3)]) == [Run(0, 3, 0, 3)]
    assert runs([[0, 3]], 4, [(0, 5)]) == [Run(0, 5, 0, 3)]


def test_at_a_border_the_state_goes_to_the_next_block() -> None:
    assert runs([[3, 8]], 4, [(4, 5)]) == [Run(0, 1, 3, 8)]
    assert runs([[3, 8]], 4, [(3, 4)]) == [Run(0, 1, 3, 3)]


def test_one_state_for_a_request_stays_where_it_is() -> None:
    assert runs([[3], [4]], ENDLESS, [(0, 9), (100, 101)]) == [Run(0, 9, 0, 3), Run(9, 1, 4, 4)]


def test_what_is_alike_is_computed_together() -> None:
    step = [Run(0, 1, 5, 5), Run(1, 3, 0, 6), Run(4, 1, 7, 8), Run(5, 3, 0, 9), Run(8, 1, 0, 2)]
    batches = batches_of_runs(step)
    assert [(batch.tokens.tolist(), batch.writes.tolist()) for batch in batches] == [
        ([[0], [4]], [5, 8]),
        ([[8]], [2]),
        ([[1, 2, 3], [5, 6, 7]], [6, 9]),
    ]
    assert [None if batch.reads is None else batch.reads.tolist() for batch in batches] == [[5, 7], None, None]


def test_a_run_waits_for_the_state_that_it_reads() -> None:
    """The last request begins at a border that the first one reaches in two runs, in this very step."""
    step = [Run(0, 1, 4, 9), Run(1, 2, 0, 3), Run(3, 1, 3, 4)]
    assert [batch.writes.tolist() for batch in batches_of_runs(step)] == [[3], [4], [9]]


def test_states_that_wait_for_each_other_are_a_bug() -> None:
    with pytest.raises(InvariantError, match="in a circle"):
        batches_of_runs([Run(0, 1, 1, 2), Run(1, 1, 2, 1)])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_token_runs_once_and_in_order(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 3, 5, ENDLESS]))
    spans, tables, block = [], [], 0
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, 12))
        stop = start + data.draw(st.integers(1, 12))
        places = -(-stop // size)
        must = {(stop - 1) // size} | ({(start - 1) // size} if start else set())
        kept = must | set(data.draw(st.lists(st.integers(0, places - 1), max_size=4)))
        tables.append([block + place + 1 if place in kept else 0 for place in range(places)])
        block += places
        spans.append((start, stop))
    memory = {}
    for row, (table, (start, _)) in enumerate(zip(tables, spans, strict=True)):
        if start:
            memory[table[(start - 1) // size]] = (row, start)
    rows = [(row, position) for row, (start, stop) in enumerate(spans) for position in range(start, stop)]
    seen = []
    for batch in batches_of_runs(runs(tables, size, spans)):
        reads = [None] * len(batch.writes) if batch.reads is None else batch.reads.tolist()
        for tokens, read, write in zip(batch.tokens.tolist(), reads, batch.writes.tolist(), strict=True):
            row, done = rows[tokens[0]]
            assert (row, done) == ((row, 0) if read is None else memory[read])
            assert [rows[token] for token in tokens] == [(row, done + i) for i in range(len(tokens))]
            memory[write] = (row, done + len(tokens))
            seen += tokens
    assert sorted(seen) == list(range(len(rows)))
    for row, (table, (start, stop)) in enumerate(zip(tables, spans, strict=True)):
        for place in range(start // size, len(table)):
            if table[place]:
                assert memory[table[place]] == (row, min((place + 1) * size, stop))
