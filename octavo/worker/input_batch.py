"""The requests that a rank holds, as arrays with a row per request, kept from step to step.

Rows 0 to num_requests - 1 are in use; when a request leaves, the last row moves into its place. A step names requests
by id and order; the batch computes them in the order of their rows, which no result depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.errors import InvariantError
from octavo.messages import CachedRequests, NewRequestData, SchedulerOutput
from octavo.worker.block_table import BlockTable, Int32Array, Int64Array
from octavo.worker.sampling_table import SamplingTable
from octavo.worker.step_kernels import flatten_rows

_FIRST_WIDTH = 256


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step, flattened: R requests and T tokens, request after request."""

    rows: Int64Array
    """[R]: rows of the requests, ascending."""
    query_start: Int32Array
    """[R + 1]: request i's tokens are number query_start[i] to query_start[i + 1] - 1."""
    seq_lens: Int32Array
    """[R]: tokens in the cache once the step has written."""
    token_rows: Int64Array
    """[T]: the row of each token's request."""
    positions: Int64Array
    """[T]."""
    token_ids: Int64Array
    """[T]."""
    samplers: Int64Array
    """Indices into `rows` of the requests whose last known token is computed: they get a next one."""


class InputBatch:
    """The requests on this rank.

    Owns: their token ids (prompt, then output), counts, block tables and sampling parameters.
    Never: decides what runs; it does what `SchedulerOutput` says.
    """

    def __init__(self, *, num_rows: int, tables: list[BlockTable], seed: int) -> None:
        self.tables = tables
        """One per group."""
        self.sampling = SamplingTable(num_rows=num_rows, seed=seed)
        self.request_ids: list[str] = []
        """By row."""
        self.history: Int32Array = np.zeros((num_rows, _FIRST_WIDTH), dtype=np.int32)
        """Token ids by row; grows in width as the longest request does."""
        self.num_tokens: Int64Array = np.zeros(num_rows, dtype=np.int64)
        """Known tokens."""
        self.num_prompt: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self.num_computed: Int64Array = np.zeros(num_rows, dtype=np.int64)
        """Tokens in the cache before the step under way."""
        self.num_prompt_logprobs: Int32Array = np.full(num_rows, -1, dtype=np.int32)
        """Best tokens reported at each prompt token; -1 reports none."""
        self._row_of: dict[str, int] = {}
        self._named: tuple[list[str], Int64Array] = ([], np.zeros(0, dtype=np.int64))
        """The requests whose rows were asked for last, and these rows: most steps name the same ones."""

    @property
    def num_requests(self) -> int:
        return len(self.request_ids)

    def append_earlier(self, tokens: Mapping[str, int]) -> None:
        """Append what another rank sampled in the step before; requests that are gone are skipped."""
        known = {request_id: token for request_id, token in tokens.items() if request_id in self._row_of}
        if known:
            self.append_tokens(self._rows_of(list(known)), np.fromiter(known.values(), np.int64, count=len(known)))

    def update(self, step: SchedulerOutput) -> None:
        """Forget, admit and extend requests as `step` says, in this order."""
        for request_id in step.finished_request_ids:
            if request_id in self._row_of:
                self._remove(request_id)
        for data in step.new_requests:
            self._add(data)
        if step.cached_requests.request_ids:
            self._extend(step.cached_requests)

    def flatten(self, step: SchedulerOutput) -> StepInput:
        """The step's tokens, in the order of rows."""
        count_of_row = np.zeros(self.num_requests, dtype=np.int64)
        counts = step.num_scheduled_tokens
        count_of_row[self._rows_of(list(counts))] = np.fromiter(counts.values(), dtype=np.int64, count=len(counts))
        wanted = self.num_computed[: self.num_requests] + count_of_row
        if (wanted > self.num_tokens[: self.num_requests]).any():
            row = int(np.argmax(wanted > self.num_tokens[: self.num_requests]))
            raise InvariantError(
                f"request {self.request_ids[row]!r} is to compute {int(wanted[row])} tokens but has "
                f"{int(self.num_tokens[row])}"
            )
        return StepInput(*flatten_rows(count_of_row, self.num_computed, self.num_tokens, self.history))

    def append_tokens(self, rows: Int64Array, token_ids: Int64Array) -> None:
        """Let `token_ids[i]` be the next token of row `rows[i]`."""
        places = self.num_tokens[rows]
        self._widen(int(places.max(initial=0)) + 1)
        self.history[rows, places] = token_ids
        self.num_tokens[rows] = places + 1

    def _add(self, data: NewRequestData) -> None:
        row = self.num_requests
        if data.request_id in self._row_of:
            raise InvariantError(f"the scheduler adds request {data.request_id!r}, which this rank holds already")
        if row == len(self.num_tokens):
            raise InvariantError(f"the scheduler runs more than {row} requests at once")
        num_tokens = len(data.token_ids)
        self._widen(num_tokens)
        self.history[row, :num_tokens] = data.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt[row] = data.num_prompt_tokens
        self.num_computed[row] = data.num_computed_tokens
        wanted, has_output = data.sampling.prompt_logprobs, num_tokens > data.num_prompt_tokens
        # A resumed request that has output already reported its whole prompt.
        self.num_prompt_logprobs[row] = -1 if wanted is None or has_output else wanted
        self.sampling.set_row(row, data)
        for table, block_ids in zip(self.tables, data.block_ids, strict=True):
            table.set_row(row, block_ids)
        self.request_ids.append(data.request_id)
        self._row_of[data.request_id] = row
        self._named = ([], self._named[1][:0])

    def _extend(self, cached: CachedRequests) -> None:
        self.num_computed[self._rows_of(cached.request_ids)] = cached.num_computed_tokens
        news = cached.new_block_ids
        if not news:
            return
        named = [(self._row_of[request_id], block_ids) for request_id, block_ids in news.items()]
        for group, table in enumerate(self.tables):
            rows = [row for row, block_ids in named for _ in block_ids[group]]
            if rows:
                table.append(rows, [block for _, block_ids in named for block in block_ids[group]])

    def _rows_of(self, request_ids: list[str]) -> Int64Array:
        """[len(request_ids)]. Not to be changed."""
        known, rows = self._named
        if request_ids != known:
            try:
                rows = np.array([self._row_of[request_id] for request_id in request_ids], dtype=np.int64)
            except KeyError as error:
                raise InvariantError(f"the scheduler names request {error}, which this rank does not hold") from None
            self._named = (request_ids, rows)
        return rows

    def _remove(self, request_id: str) -> None:
        row, last = self._row_of.pop(request_id), self.num_requests - 1
        self._named = ([], self._named[1][:0])
        if row != last:
            self._move_row(last, row)
        self.request_ids.pop()
        self.sampling.clear_row(last)

    def _move_row(self, source: int, target: int) -> None:
        count = int(self.num_tokens[source])
        self.history[target, :count] = self.history[source, :count]
        for column in (self.num_tokens, self.num_prompt, self.num_computed, self.num_prompt_logprobs):
            column[target] = column[source]
        self.sampling.move_row(source, target)
        for table in self.tables:
            table.move_row(source, target)
        self.request_ids[target] = self.request_ids[source]
        self._row_of[self.request_ids[target]] = target

    def _widen(self, needed: int) -> None:
        if needed > self.history.shape[1]:
            wider = np.zeros((self.history.shape[0], max(needed, 2 * self.history.shape[1])), dtype=np.int32)
            # Row by row, because what lies past a row's end is memory that was never touched.
            for row, count in enumerate(self.num_tokens[: self.num_requests].tolist()):
                wider[row, :count] = self.history[row, :count]
            self.history = wider
