"""Rows of logits shared out among threads: the jobs that a team's threads run together.

A job is a record (`JOB`) whose address every thread gets. A thread takes a lane, which is its working memory, then one
row after the other until none is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from octavo.attention.numba_vectors import address_of, fetch_add
from octavo.compiling import c_function
from octavo.errors import InvariantError
from octavo.worker import row_kernels, sampling_kernels
from octavo.worker.row_kernels import BLOCK, argmax
from octavo.worker.sampling_kernels import Raw, Rules, WorkRows, describe_row, inlined, sample_row
from octavo.worker.sampling_table import OPTIONS

_FIELDS = (
    "next_lane",
    "next_row",
    "num_rows",
    "raw",
    "is_wide",
    "infinity",
    "vocab_size",
    "which",
    "tokens",
    "options",
    "history",
    "history_width",
    "edit_ids",
    "edit_values",
    "num_edits",
    "allow_ids",
    "num_allowed",
    "masks",
    "mask_words",
    "places",
    "wanted",
    "ids",
    "logprobs",
    "ranks",
    "width",
    "work_rows",
    "work_values",
    "work_ids",
    "work_counts",
    "work_maxima",
    "num_blocks",
)

JOB = np.dtype([(name, np.int64) for name in _FIELDS])
"""int64 fields: addresses of arrays, unless their name says a count or a size. `next_lane` and `next_row` count up
while a job runs. Row i of a call is masked by row `places[i]` of `masks`, unless that is -1. Row `which[i]` of `raw`
gets `tokens[which[i]]` as `options[i]` say; row i is described in row i of `ids` and `logprobs`."""

_POINTER = types.CPointer(numba.from_dtype(JOB))


def _pointer_to(element: Any) -> Any:
    """A function from an address to a pointer to numbers of numba type `element`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], ir.PointerType())

        return types.CPointer(element)(address), generate

    return pointer


_int16s = _pointer_to(types.int16)
_int32s = _pointer_to(types.int32)
_int64s = _pointer_to(types.int64)
_floats = _pointer_to(types.float32)
_records = _pointer_to(numba.from_dtype(OPTIONS))


@inlined
def _raw_row(job: Any, row: int) -> Raw:
    size = job.vocab_size
    at = job.raw + row * size * (4 if job.is_wide else 2)
    return Raw(carray(_int32s(at), size), carray(_int16s(at), size), job.is_wide != 0)


@inlined
def _work_rows(job: Any, lane: int) -> WorkRows:
    size, at = job.vocab_size, 4 * lane * job.vocab_size
    return WorkRows(
        carray(_floats(job.work_rows + at), size),
        carray(_floats(job.work_values + at), size),
        carray(_int32s(job.work_ids + at), size),
        carray(_int32s(job.work_counts + at), size),
        carray(_floats(job.work_maxima + 4 * lane * job.num_blocks), job.num_blocks),
    )


@inlined
def _mask_words(job: Any, i: int) -> Any:
    """The mask of row i of the call; no words where it has none."""
    place = carray(_int64s(job.places), job.num_rows)[i]
    count = job.mask_words if place >= 0 else 0
    return carray(_int32s(job.masks + 4 * max(place, 0) * job.mask_words), count)


@inlined
def _run_argmax(job: Any, address: int) -> None:
    which, tokens = carray(_int64s(job.which), job.num_rows), _int64s(job.tokens)
    while True:
        i = fetch_add(address + 8, 1)
        if i >= job.num_rows:
            return
        raw = _raw_row(job, which[i])
        found = argmax(raw.wide, job.infinity) if raw.is_wide else argmax(raw.narrow, job.infinity)
        tokens[which[i]] = found


@inlined
def _run_sample(job: Any, address: int) -> None:
    which, tokens = carray(_int64s(job.which), job.num_rows), _int64s(job.tokens)
    options = carray(_records(job.options), job.num_rows)
    rules = Rules(
        carray(_int32s(job.edit_ids), job.num_edits),
        carray(_floats(job.edit_values), job.num_edits),
        carray(_int32s(job.allow_ids), job.num_allowed),
    )
    work = _work_rows(job, fetch_add(address, 1))
    while True:
        i = fetch_add(address + 8, 1)
        if i >= job.num_rows:
            return
        history = carray(_int32s(job.history + 4 * options[i].row * job.history_width), job.history_width)
        tokens[which[i]] = sample_row(work, _raw_row(job, which[i]), history, options[i], rules, _mask_words(job, i))


@inlined
def _run_describe(job: Any, address: int) -> None:
    wanted, ranks = carray(_int32s(job.wanted), job.num_rows), _int64s(job.ranks)
    work = _work_rows(job, fetch_add(address, 1))
    while True:
        i = fetch_add(address + 8, 1)
        if i >= job.num_rows:
            return
        ids = carray(_int32s(job.ids + 4 * i * job.width), job.width)
        logprobs = carray(_floats(job.logprobs + 4 * i * job.width), job.width)
        ranks[i] = describe_row(work, _raw_row(job, i), wanted[i], ids, logprobs, _mask_words(job, i))


@cache
def _source_digest() -> str:
    """Of every file whose code ends up in a job: numba itself watches only this one."""
    digest = hashlib.blake2b(digest_size=8)
    for file in (row_kernels.__file__, sampling_kernels.__file__, __file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _address(enter: Callable[[Any], None]) -> int:
    """The address of `enter` as a C function of a job's address. Numba keys what it keeps on disk by the code of
    `enter` and the values it closes over: a digest of sources, and nothing that differs from process to process."""
    signature = types.void(_POINTER)
    compiled = c_function(signature, enter)
    _kept.append(compiled)
    address: int = compiled.address
    return address


_kept: list[Any] = []
"""Compiled functions whose addresses are in use."""


@cache
def argmax_entry() -> int:
    """The job that writes the first greatest element of each row into `tokens`; -1 where an element is NaN."""
    source = _source_digest()

    def enter(pointer: Any) -> None:
        if source:
            _run_argmax(carray(pointer, 1)[0], address_of(pointer))

    return _address(enter)


@cache
def sample_entry() -> int:
    """The job that chooses a token for each row; -1 where a logit is NaN."""
    source = _source_digest()

    def enter(pointer: Any) -> None:
        if source:
            _run_sample(carray(pointer, 1)[0], address_of(pointer))

    return _address(enter)


@cache
def describe_entry() -> int:
    """The job that writes log probabilities and ranks of each row; rank -1 where a logit is NaN."""
    source = _source_digest()

    def enter(pointer: Any) -> None:
        if source:
            _run_describe(carray(pointer, 1)[0], address_of(pointer))

    return _address(enter)


class Job:
    """The record that a sampler's calls fill in, and the working memory behind it.

    Owns: a lane of work rows per thread. Never: what `set` points it at; callers keep those arrays alive.
    """

    def __init__(self, vocab_size: int, num_lanes: int) -> None:
        shape, num_blocks = (num_lanes, vocab_size), -(-vocab_size // BLOCK)
        self._record = np.zeros(1, dtype=JOB)
        self._work = {
            "work_rows": np.empty(shape, dtype=np.float32),
            "work_values": np.empty(shape, dtype=np.float32),
            "work_ids": np.empty(shape, dtype=np.int32),
            "work_counts": np.zeros(shape, dtype=np.int32),
            "work_maxima": np.empty((num_lanes, num_blocks), dtype=np.float32),
        }
        self.set(vocab_size=vocab_size, num_blocks=num_blocks, **self._work)

    @property
    def address(self) -> int:
        """What the job's C functions take."""
        return int(self._record.ctypes.data)

    def set_rows(self, bits: npt.NDArray[Any], num_rows: int) -> None:
        """Begin a call over `num_rows` rows of the contiguous logits `bits`, int16 or int32."""
        if bits.shape[1] != self._record["vocab_size"][0]:
            raise InvariantError(
                f"logits of {bits.shape[1]} words for a vocabulary of {int(self._record['vocab_size'][0])}"
            )
        self.set(next_lane=0, next_row=0, num_rows=num_rows, raw=bits, is_wide=int(bits.itemsize == 4))

    def set(self, **fields: int | npt.NDArray[Any]) -> None:
        """Set fields: numbers as they are, arrays by their address."""
        record = self._record[0]
        for name, value in fields.items():
            record[name] = value.ctypes.data if isinstance(value, np.ndarray) else value
