"""Loops of a step's bookkeeping, compiled by numba: NumPy would take a dozen calls for each.

`table` is int32 [rows, width], `history` int32 [rows, width]; everything that counts or indexes is int64.
"""

from __future__ import annotations

import numpy as np

from octavo.kv.specs import NULL_BLOCK, PAD_SLOT
from octavo.worker.row_kernels import Array, compiled


@compiled
def flatten_rows(
    count_of_row: Array, num_computed: Array, num_tokens: Array, history: Array
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """A step in which row r computes `count_of_row[r]` tokens, flattened; the fields of `StepInput` in their order."""
    num_requests = np.count_nonzero(count_of_row)
    total = count_of_row.sum()
    rows = np.empty(num_requests, np.int64)
    query_start = np.zeros(num_requests + 1, np.int32)
    seq_lens = np.empty(num_requests, np.int32)
    token_rows, positions, token_ids = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    samplers = np.empty(num_requests, np.int64)
    request = token = num_samplers = 0
    for row in range(count_of_row.shape[0]):
        if count_of_row[row] == 0:
            continue
        stop = num_computed[row] + count_of_row[row]
        rows[request] = row
        seq_lens[request] = stop
        for position in range(num_computed[row], stop):
            token_rows[token] = row
            positions[token] = position
            token_ids[token] = history[row, position]
            token += 1
        if stop == num_tokens[row]:
            samplers[num_samplers] = request
            num_samplers += 1
        request += 1
        query_start[request] = token
    return rows, query_start, seq_lens, token_rows, positions, token_ids, samplers[:num_samplers]


@compiled
def append_ids(table: Array, num_blocks: Array, rows: Array, block_ids: Array) -> int:
    """Append `block_ids[i]` to row `rows[i]` of `table`, one after the other. Returns the most ids that any of these
    rows then holds; when that is more than the width, nothing is changed."""
    most = 0
    for i in range(rows.shape[0]):
        num_blocks[rows[i]] += 1
        most = max(most, num_blocks[rows[i]])
    for i in range(rows.shape[0]):
        num_blocks[rows[i]] -= 1
    if most <= table.shape[1]:
        for i in range(rows.shape[0]):
            table[rows[i], num_blocks[rows[i]]] = block_ids[i]
            num_blocks[rows[i]] += 1
    return most


@compiled
def slots_of(table: Array, block_size: int, token_rows: Array, positions: Array) -> Array:
    """The slot of each token, given its row and position; `PAD_SLOT` where its block is the null block."""
    slots = np.empty(positions.shape[0], np.int64)
    for i in range(positions.shape[0]):
        column = positions[i] // block_size
        block = np.int64(table[token_rows[i], column])
        offset = positions[i] - column * block_size
        slots[i] = PAD_SLOT if block == NULL_BLOCK else block * block_size + offset
    return slots
