"""One step as a group of states sees it: which tokens run together, from which state, to which.

A request with c tokens computed has its state in the block of position c - 1. A step that takes it to d tokens reads
that, and writes the state after each block border on the way for which its table holds a block, and after token d. So
its tokens are cut into **runs** at those borders, each of which goes on where the one before it stopped:

    blocks of 4, c = 6, d = 15, table [.., 5, 0, 9]     tokens 6, 7 from block 5 to block 5; tokens 8 .. 14 from 5 to 9

Where no block was free, the request's only one stands in its last place too. Then there is no border to stop at:

    blocks of 4, c = 6, d = 15, table [.., 5, 0, 5]     tokens 6 .. 14 from block 5 to block 5

A request may begin at a border that another one reaches in the same step, and reads what that one writes there. Runs
are therefore put in order: one that reads what another writes comes after it. Runs of equal length that do not wait for
each other are computed together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK
from octavo.worker.block_table import Int32Array, Int64Array


class Run(NamedTuple):
    """Tokens of one request, consecutive in the step."""

    first: int
    """Number of its first token in the step."""
    num_tokens: int
    reads: int
    """Block of the state before it; the null block where the request begins here."""
    writes: int


class RunBatch(NamedTuple):
    """Runs that are computed together."""

    tokens: Int64Array
    """[B, L]"""
    reads: Int64Array | None
    """[B]; None where the runs begin their requests."""
    writes: Int64Array
    """[B]"""


def runs_of_step(table: Int32Array, block_size: int, query_start: Int32Array, seq_lens: Int32Array) -> list[Run]:
    """The runs of all requests.

    Parameters:
        table: [R, width], request i's blocks in row i.
        query_start: [R + 1]: request i's tokens are number query_start[i] to query_start[i + 1] - 1 of the step.
        seq_lens: [R]: tokens of each request once the step has run.
    """
    starts, ends = query_start.tolist(), seq_lens.tolist()
    runs = []
    for row, end in enumerate(ends):
        first, blocks = starts[row], table[row]
        done = end - (starts[row + 1] - first)
        state = int(blocks[(done - 1) // block_size]) if done else NULL_BLOCK
        last = (end - 1) // block_size
        for place in range(done // block_size, last + 1):
            block = int(blocks[place])
            if place < last and block in (NULL_BLOCK, blocks[last]):
                continue
            stop = min((place + 1) * block_size, end)
            runs.append(Run(first, stop - done, state, block))
            first, done, state = first + stop - done, stop, block
    return runs


def batches_of_runs(runs: list[Run]) -> list[RunBatch]:
    """`runs` in an order in which each finds the state it reads, those that are alike together."""
    writer = {run.writes: index for index, run in enumerate(runs)}
    waves: dict[int, int] = {}
    for index in range(len(runs)):
        chain = []
        # Runs that wait for each other form chains, one block after the other; walk each to its start.
        while index not in waves:
            chain.append(index)
            if len(chain) > len(runs):
                raise InvariantError(f"the states of {len(runs)} runs wait for each other in a circle")
            before = writer.get(runs[index].reads, index)
            if before == index:
                waves[index] = 0
                chain.pop()
            else:
                index = before
        for waiting in reversed(chain):
            waves[waiting] = waves[index] + 1
            index = waiting
    alike: dict[tuple[int, int, bool], list[Run]] = {}
    for index, run in enumerate(runs):
        alike.setdefault((waves[index], run.num_tokens, run.reads == NULL_BLOCK), []).append(run)
    return [
        RunBatch(
            tokens=np.array([run.first for run in together], dtype=np.int64)[:, None] + np.arange(num_tokens),
            reads=None if begins else np.array([run.reads for run in together], dtype=np.int64),
            writes=np.array([run.writes for run in together], dtype=np.int64),
        )
        for (_, num_tokens, begins), together in sorted(alike.items(), key=lambda item: item[0])
    ]
