"""Kernels that multiply rows with panels of coded weights, and that put weights into panels.

    rows -> lines (each thread its own where rows are few, all threads together where they are many)
         -> units of panels, shared out among the threads -> results

The sums of an output are taken in the same order whatever the number of rows, threads and neighbours, so a result does
not depend on them to the last bit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types

from octavo.attention.numba_emit import Element, VectorPath
from octavo.attention.numba_kernels import kernel_folder, source_digest, vector_paths
from octavo.attention.numba_memory import JobType, call_kernel, get_int64
from octavo.attention.numba_vectors import address_of, compiled, fetch_add
from octavo.compiling import c_function, kept_apart
from octavo.formats.codes import Coding
from octavo.models.modules.linear_kernels import ROWS_FIELDS
from octavo.models.modules.panel_tile_kernels import (
    CHUNK,
    LINE_BYTES,
    OUTPUTS,
    BytePath,
    make_line,
    multiply_panel,
)


def _record(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names])


PRODUCT_JOB = _record(
    *ROWS_FIELDS,
    "lines",
    "num_inputs",
    "num_chunks",
    "num_units",
    "parts",
    "next_parts",
)
"""out[i, j] = rows[i] . weight[j] + bias[j]. `lines` are those of the rows, or 0 where each thread makes its own;
`parts` are `PART`s; `next_parts` those of the product that comes next, or 0. Numbers, addresses and bytes."""

PART = _record(
    "num_units",
    "kernel",
    "codes",
    "code_bytes",
    "scales",
    "scale_bytes",
    "bias",
    "num_outputs",
    "out_offset",
    "unit_panels",
)
"""Outputs that are coded alike. `kernel` multiplies a unit, which is `unit_panels` panels or what is left of them;
`code_bytes` and `scale_bytes` are those of a panel; `bias` is float32 for whole panels, or 0; `out_offset` is where the
first output goes in a row of results."""

UNIT = _record("number", "lines", "num_rows", "num_chunks", "out", "out_bytes", "ahead_codes", "ahead_scales")
"""A unit of a part, and the rows that it is multiplied with; what is read next is asked for meanwhile."""

LINE_JOB = _record(*ROWS_FIELDS, "lines", "num_inputs", "num_chunks")
"""Rows, and where their lines go."""

_PART_BYTES = PART.itemsize
_CODES, _SCALES, _UNIT_PANELS = (int(PART.fields[name][1]) for name in ("codes", "scales", "unit_panels"))  # type: ignore[index]
"""Places in a part; bytes of a panel follow each of the first two."""


@cache
def byte_paths() -> tuple[BytePath, ...]:
    """The paths that this CPU can take, best first."""
    features = llvmlite.binding.get_host_cpu_features()
    has = {name for name, is_there in features.items() if is_there}
    by_lanes: dict[int, VectorPath] = {}
    for path in vector_paths():
        by_lanes[path.lanes] = path  # of those with as many lanes the plainest, which all of them can take
    paths: list[BytePath] = []
    if wide := by_lanes.get(16):
        if "avx512vnni" in has:
            paths.append(BytePath(wide, "vnni", 512, 8))
        paths.append(BytePath(wide, "madd", 512, 8))
    if middle := by_lanes.get(8):
        if "avxvnni" in has or {"avx512vnni", "avx512vl"} <= has:
            paths.append(BytePath(middle, "vnni", 256, 2))
        paths.append(BytePath(middle, "madd", 256, 2))
    return (*paths, BytePath(by_lanes[4], "plain", 32 * OUTPUTS, 1))


def tile_of(path: BytePath, num_rows: int) -> int:
    """Rows of the tile that holds the last rows: the least power of two that is enough, but `tile_rows` at most."""
    tile = 1
    while tile < min(num_rows, path.tile_rows):
        tile *= 2
    return tile


def line_bytes(path: BytePath, num_rows: int, num_chunks: int) -> int:
    """Bytes of the lines of rows, those included that fill up the last tile."""
    whole = num_rows // path.tile_rows * path.tile_rows
    rest = num_rows - whole
    return (whole + (tile_of(path, rest) if rest else 0)) * num_chunks * LINE_BYTES


@compiled
def last_tile(most: int, num_rows: int) -> int:
    """As `tile_of`."""
    tile = 1
    while tile < min(num_rows, most):
        tile *= 2
    return tile


@compiled
def make_tile(path: BytePath, element: Element, most: int, job: Any, first: int, lines: int) -> None:
    """The lines of the tile whose first row is `first`; what is missing of the last tile is zeros."""
    tile = last_tile(most, job.num_rows - first)
    for row in range(tile):
        at = lines + first * job.num_chunks * LINE_BYTES + row * LINE_BYTES
        for start in range(0, job.num_inputs, CHUNK):
            count = job.num_inputs - start if first + row < job.num_rows else 0
            make_line(path, element, job.rows + (first + row) * job.row_bytes + start * element.num_bytes, count, at)
            at += tile * LINE_BYTES


@compiled
def make_lines(path: BytePath, element: Element, most: int, job: Any) -> None:
    """One thread's share of the tiles of a `LINE_JOB`."""
    while True:
        first = fetch_add(address_of(job), 1) * most
        if first >= job.num_rows:
            return
        make_tile(path, element, most, job, first, job.lines)


@compiled
def multiply_unit(path: BytePath, coding: Coding, element: Element, most: int, part: Any, unit: Any) -> None:
    """Results of all rows with the panels of a unit."""
    begin = unit.number * part.unit_panels
    end = min(begin + part.unit_panels, (part.num_outputs + OUTPUTS - 1) // OUTPUTS)
    for panel in range(begin, end):
        out = unit.out + part.out_offset + panel * OUTPUTS * element.num_bytes
        ahead_codes, ahead_scales = unit.ahead_codes, unit.ahead_scales
        if panel + 1 < end:
            ahead_codes = part.codes + (panel + 1) * part.code_bytes
            ahead_scales = part.scales + (panel + 1) * part.scale_bytes
        for row in range(0, unit.num_rows, most):
            multiply_panel(
                path,
                coding,
                element,
                last_tile(most, unit.num_rows - row),
                unit.lines + row * unit.num_chunks * LINE_BYTES,
                part.codes + panel * part.code_bytes,
                part.scales + panel * part.scale_bytes,
                ahead_codes,
                ahead_scales,
                unit.num_chunks,
                unit.num_rows - row,
                part.num_outputs - panel * OUTPUTS,
                part.bias + panel * OUTPUTS * 4 if part.bias != 0 else 0,
                out + row * unit.out_bytes,
                unit.out_bytes,
            )


@compiled
def look_ahead(job: Any, number: int, unit: Any) -> None:
    """Where unit `number` of the product begins, or what this thread may be given of the next one; as a `UNIT`'s."""
    part = job.parts
    if number < job.num_units:
        while number >= get_int64(part):
            number -= get_int64(part)
            part += _PART_BYTES
    elif job.next_parts != 0:
        part = job.next_parts
        number = (number - job.num_units) % get_int64(part)
    else:
        number = 0
    panel = number * get_int64(part + _UNIT_PANELS)
    for place, offset in ((6, _CODES), (7, _SCALES)):
        unit[place] = get_int64(part + offset) + panel * get_int64(part + offset + 8)


@compiled
def multiply_parts(path: BytePath, element: Element, most: int, job: Any) -> None:
    """One thread's share of the units of a `PRODUCT_JOB`."""
    lines, num_rows = job.lines, job.num_rows
    scratch_rows = 0 if lines != 0 else num_rows + most
    scratch = np.empty((scratch_rows * job.num_chunks + 1) * LINE_BYTES, np.uint8)
    if lines == 0:
        lines = (scratch.ctypes.data + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
        for first in range(0, num_rows, most):
            make_tile(path, element, most, job, first, lines)
    unit = np.empty(8, np.int64)
    unit[1], unit[2], unit[3], unit[4], unit[5] = lines, num_rows, job.num_chunks, job.out, job.out_bytes
    following = fetch_add(address_of(job), 1)
    while following < job.num_units:
        number, following = following, fetch_add(address_of(job), 1)
        look_ahead(job, following, unit)
        part = job.parts
        while number >= get_int64(part):
            number -= get_int64(part)
            part += _PART_BYTES
        unit[0] = number
        call_kernel(get_int64(part + 8), part, unit.ctypes.data)
    scratch[0], unit[0] = 0, 0  # numba frees an array after its last use: not before here


@cache
def unit_kernel(path: BytePath, coding: Coding, element: Element) -> int:
    """Address of the C function that multiplies a unit; its arguments are a `PART` and a `UNIT`."""
    most = path.tile_rows

    def unit(part: Any, unit: Any) -> None:
        multiply_unit(path, coding, element, most, part, unit)

    return _address(types.void(JobType("ProductPart", PART), JobType("ProductUnit", UNIT)), unit)


@cache
def product_kernel(path: BytePath, element: Element) -> int:
    """Address of the team kernel of a product; its argument is a `PRODUCT_JOB`."""
    most = path.tile_rows

    def product(job: Any) -> None:
        multiply_parts(path, element, most, job)

    return _address(types.void(JobType("ProductJob", PRODUCT_JOB)), product)


@cache
def line_kernel(path: BytePath, element: Element) -> int:
    """Address of the team kernel that makes lines; its argument is a `LINE_JOB`."""
    most = path.tile_rows

    def line(job: Any) -> None:
        make_lines(path, element, most, job)

    return _address(types.void(JobType("LineJob", LINE_JOB)), line)


_kept: list[Any] = []
"""Compiled functions whose addresses are in use."""


def _address(signature: Any, function: Any) -> int:
    digest = source_digest(*sorted(Path(__file__).parent.glob("*_kernels.py")))
    folders = [folder / digest for folder in (kernel_folder(), *kept_apart())]
    compiled_function = c_function(signature, function, folders)
    _kept.append(compiled_function)
    return int(compiled_function.address)
