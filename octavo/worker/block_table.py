"""Which block holds which positions, per request, and the slot each new token is written to.

    row of a request   [417, 12, 0, 88, ...]     column j: the block of positions j * block_size ... + block_size - 1
    slot of position p row[p // block_size] * block_size + p % block_size, or PAD_SLOT where the block is the null block

Tables hold what the scheduler sends, nothing else: ids are appended, never looked up or freed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.worker.step_kernels import append_ids, slots_of

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_FIRST_WIDTH = 64


class BlockTable:
    """The block ids of one group, a row per request.

    Owns: one int32 array `[num_rows, width]` and the number of ids in each row. The array grows in width as the longest
    request does. Never: decides which block holds what.
    """

    def __init__(self, *, num_rows: int, block_size: int, max_blocks: int) -> None:
        self.block_size = block_size
        self.max_blocks = max_blocks
        """Most ids one row can ever hold: the longest request, in blocks."""
        self.rows: Int32Array = np.zeros((num_rows, max(1, min(_FIRST_WIDTH, max_blocks))), dtype=np.int32)
        self.num_blocks: Int32Array = np.zeros(num_rows, dtype=np.int32)

    def set_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Make `block_ids` the whole table of `row`."""
        self.num_blocks[row] = 0
        self.append([row] * len(block_ids), block_ids)

    def append(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """Append `block_ids[i]` to row `rows[i]`, for all i in turn.

        Raises `ValueError` when a row would outgrow `max_blocks`; nothing is changed then.
        """
        index, ids = np.array(rows, dtype=np.int64), np.array(block_ids, dtype=np.int32)
        needed = append_ids(self.rows, self.num_blocks, index, ids)
        if needed > self.max_blocks:
            raise ValueError(f"a row of {needed} blocks is longer than the longest request, {self.max_blocks} blocks")
        if needed > self.rows.shape[1]:
            self._widen(needed)
            append_ids(self.rows, self.num_blocks, index, ids)

    def move_row(self, source: int, target: int) -> None:
        """Let row `target` be what row `source` is. Ids beyond a row's end are never read, so they are not cleared."""
        count = int(self.num_blocks[source])
        self.rows[target, :count] = self.rows[source, :count]
        self.num_blocks[target] = count

    def slots(self, token_rows: Int64Array, positions: Int64Array) -> Int64Array:
        """int64 slot of each token, given its row and its position; `PAD_SLOT` where nothing is kept."""
        return slots_of(self.rows, self.block_size, token_rows, positions)

    def take(self, rows: Int64Array, width: int) -> Int32Array:
        """The first `width` columns of `rows`, contiguous. Columns past a row's end hold ids of no meaning."""
        taken: Int32Array = self.rows[:, : min(width, self.rows.shape[1])][rows]
        return taken

    def _widen(self, needed: int) -> None:
        width = min(max(needed, 2 * self.rows.shape[1]), self.max_blocks)
        wider = np.zeros((self.rows.shape[0], width), dtype=np.int32)
        wider[:, : self.rows.shape[1]] = self.rows
        self.rows = wider
