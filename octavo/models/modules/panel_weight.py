"""Weights of linear layers that stay coded: multiplied as they are, with rows that are coded on the way."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_memory import Record
from octavo.attention.program import KernelCall
from octavo.models.modules.linear_kernels import ROWS_FIELDS
from octavo.models.modules.panel_kernels import (
    LINE_JOB,
    PART,
    PRODUCT_JOB,
    byte_paths,
    line_bytes,
    line_kernel,
    product_kernel,
    unit_kernel,
)
from octavo.models.modules.panel_tile_kernels import LINE_BYTES
from octavo.models.modules.panels import OUTPUTS, Panels
from octavo.models.modules.row_kernels import TEAM

FEW_ROWS = 8
"""Up to so many rows each thread makes their lines for itself."""
PROGRAM_ROWS = 32
"""Most rows that a program's calls are given: their lines are kept for it."""
ROWS_AT_ONCE = 256
"""Rows whose lines are kept at a time otherwise: with 2,048 inputs they take 2 MiB."""

_UNIT_BYTES = 16 << 10
"""Bytes of weights that a thread takes at a time: about a microsecond's."""

_STEP = struct.Struct(f"{len(ROWS_FIELDS) + 1}q")


class PanelWeight:
    """The panels of one layer, or of several layers of one input one below the other. Owns: jobs; shares the panels."""

    def __init__(self, panels: Sequence[Panels], bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        """`bias` is of all outputs together; rows and results are `dtype` (bfloat16 or float32)."""
        self.panels = list(panels)
        self.dtype = dtype
        self.bias_bytes = 0 if bias is None else bias.nbytes
        self.num_bytes = sum(part.num_bytes for part in self.panels) + self.bias_bytes
        self.address = self.panels[0].codes.ctypes.data
        self.num_outputs = sum(part.num_outputs for part in self.panels)
        self.num_inputs = self.panels[0].num_inputs
        self.path = byte_paths()[0]
        self.num_chunks = self.panels[0].codes.shape[1]
        element = element_of(dtype)
        self.kernels = line_kernel(self.path, element), product_kernel(self.path, element)
        self._biases = [] if bias is None else self._split(bias)
        self._parts = np.zeros(len(self.panels), PART)
        offset = 0
        for index, part in enumerate(self.panels):
            self._place(self._parts[index], part, self._biases[index].data_ptr() if self._biases else 0, offset)
            offset += part.num_outputs * dtype.itemsize
        self._line_job, self._job = self.records()
        self.few_rows: Any = PanelRows(self)  # a `FewRows` of `weights`, which imports this

    def records(self) -> tuple[Record, Record]:
        """New jobs of the lines and of the product: a `LINE_JOB` and a `PRODUCT_JOB`."""
        shared = {"num_inputs": self.num_inputs, "num_chunks": self.num_chunks}
        units = {"num_units": int(self._parts["num_units"].sum()), "parts": self._parts.ctypes.data}
        return Record(LINE_JOB, {**shared}), Record(PRODUCT_JOB, {**shared, **units})

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, self.num_inputs)
        if flat.stride(1) != 1 or flat.dtype is not self.dtype:
            flat = flat.to(self.dtype).contiguous()
        out = torch.empty((*rows.shape[:-1], self.num_outputs), dtype=self.dtype)
        width, num_rows = flat.element_size(), len(flat)
        row_bytes, out_bytes = flat.stride(0) * width, self.num_outputs * width
        if num_rows <= FEW_ROWS:
            self._run(1, flat.data_ptr(), row_bytes, num_rows, out.data_ptr(), out_bytes, 0)
            return out
        lines = _lines(line_bytes(self.path, min(num_rows, ROWS_AT_ONCE), self.num_chunks))
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows_at, out_at = flat.data_ptr() + first * row_bytes, out.data_ptr() + first * out_bytes
            count = min(ROWS_AT_ONCE, num_rows - first)
            for stage in (0, 1):
                self._run(stage, rows_at, row_bytes, count, out_at, out_bytes, lines.data_ptr())
        return out

    def _run(self, stage: int, *numbers: int) -> None:
        """The lines (0) or the product (1), for rows, results and lines by address and bytes."""
        record = (self._line_job, self._job)[stage]
        _STEP.pack_into(record.bytes, 0, 0, *numbers)
        TEAM.run(self.kernels[stage], record.address, torch.get_num_threads())

    def plain(self) -> torch.Tensor:
        return torch.cat([numbers_of(part, self.dtype) for part in self.panels])

    def _split(self, bias: torch.Tensor) -> list[torch.Tensor]:
        """Each part's, float32, with zeros up to whole panels."""
        parts = torch.split(bias.detach().float(), [part.num_outputs for part in self.panels])
        return [nn.functional.pad(part, (0, -len(part) % OUTPUTS)) for part in parts]

    def _place(self, place: Any, part: Panels, bias: int, offset: int) -> None:
        """Describe a part to the kernels."""
        panel_bytes = part.codes[0].nbytes, part.scales[0].nbytes
        unit_panels = max(1, _UNIT_BYTES // sum(panel_bytes))
        fields = {
            "num_units": -(-len(part.codes) // unit_panels),
            "kernel": unit_kernel(self.path, part.coding, element_of(self.dtype)),
            "codes": part.codes.ctypes.data,
            "code_bytes": panel_bytes[0],
            "scales": part.scales.ctypes.data,
            "scale_bytes": panel_bytes[1],
            "bias": bias,
            "num_outputs": part.num_outputs,
            "out_offset": offset,
            "unit_panels": unit_panels,
        }
        for name, value in fields.items():
            place[name] = value


class PanelRows:
    """The product with a `PanelWeight` as kernel calls: the lines, then the product. Owns: nothing but its weight."""

    max_rows = PROGRAM_ROWS

    def __init__(self, weight: PanelWeight) -> None:
        self._weight = weight

    def calls(self) -> tuple[KernelCall, ...]:
        weight = self._weight
        lines = _lines(line_bytes(weight.path, PROGRAM_ROWS, weight.num_chunks))
        calls = []
        for kernel, record in zip(weight.kernels, weight.records(), strict=True):
            record.fill({"lines": lines.data_ptr()})
            record.keep(weight, lines)
            calls.append(KernelCall(kernel, record))
        return tuple(calls)


def _lines(num_bytes: int) -> torch.Tensor:
    """Memory for lines, which begins at one."""
    memory = torch.empty(num_bytes + LINE_BYTES, dtype=torch.uint8)
    start = -memory.data_ptr() % LINE_BYTES
    return memory[start : start + num_bytes]


def numbers_of(panels: Panels, dtype: torch.dtype, outputs: torch.Tensor | None = None) -> torch.Tensor:
    """[n, inputs] of some outputs (int64 [n]), or of all, a few at a time."""
    if outputs is None:
        outputs = torch.arange(panels.num_outputs)
    parts = outputs.numpy()
    made = torch.empty((len(parts), panels.num_inputs), dtype=dtype)
    step = max(1, (1 << 20) // panels.num_inputs)
    for start in range(0, len(parts), step):
        made[start : start + step] = torch.from_numpy(panels.numbers(parts[start : start + step]))
    return made
