"""Weights as panels: made of rows of codes, and unmade where somebody asks for the numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.compiling import compiled
from octavo.formats.codes import Coding, GroupCodes

OUTPUTS, CHUNK = 16, 32
"""Outputs of a panel, inputs of a chunk; see `panel_tile_kernels`."""

_WORDS = CHUNK // 4
_ALIGNMENT = 64

_kernel = compiled(nogil=True, boundscheck=False, error_model="numpy")
_NIBBLES = np.uint32(0x0F0F0F0F)


@_kernel
def _pack(codes: Any, bits: int, out: Any) -> None:
    """`codes` [rows, chunks * 8] into `out` [panels, chunks, words], both as words of four bytes."""
    tile = np.zeros((_WORDS, OUTPUTS), np.uint32)
    for panel in range(out.shape[0]):
        rows = codes[panel * OUTPUTS : (panel + 1) * OUTPUTS]
        if rows.shape[0] < OUTPUTS:
            tile[:] = 0
        for chunk in range(out.shape[1]):
            for output in range(rows.shape[0]):
                for vector in range(_WORDS):
                    tile[vector, output] = rows[output, chunk * _WORDS + vector]
            _pack_tile(tile, bits, out[panel, chunk])


@_kernel
def _pack_tile(tile: Any, bits: int, out: Any) -> None:
    """One chunk of a panel: `tile` [8, outputs], four codes a word."""
    if bits == 8:
        for vector in range(_WORDS):
            for output in range(OUTPUTS):
                out[vector * OUTPUTS + output] = tile[vector, output]
        return
    for pair in range(_WORDS // 2):
        for output in range(OUTPUTS):
            high = (tile[2 * pair + 1, output] & _NIBBLES) << np.uint32(4)
            out[pair * OUTPUTS + output] = (tile[2 * pair, output] & _NIBBLES) | high
    above = bits - 4
    mask = np.uint32(0x01010101 * (2**above - 1))
    for vector in range(_WORDS if above > 0 else 0):
        plane = _WORDS // 2 + vector * above // 8
        shift = np.uint32(vector * above % 8)
        for output in range(OUTPUTS):
            part = ((tile[vector, output] >> np.uint32(4)) & mask) << shift
            if shift == 0:
                out[plane * OUTPUTS + output] = part
            else:
                out[plane * OUTPUTS + output] |= part


@_kernel
def _unpack(codes: Any, scales: Any, coding: Any, half: Any, outputs: Any, out: Any) -> None:
    """The numbers `out` [n, inputs] of some outputs. `codes` [panels, chunks, words], `scales` [panels, groups, 1 or 2,
    16] as bits; `coding` is (bits, group, zero)."""
    bits, group, zero = coding
    above = bits - 4
    num_inputs = out.shape[1]
    row = np.empty(codes.shape[1] * _WORDS, np.uint32)
    numbers = row.view(np.uint8)
    for i in range(outputs.size):
        panel, output = outputs[i] // OUTPUTS, outputs[i] % OUTPUTS
        for chunk in range(codes.shape[1]):
            words = codes[panel, chunk]
            for vector in range(_WORDS):
                if bits == 8:
                    row[chunk * _WORDS + vector] = words[vector * OUTPUTS + output]
                    continue
                word = (words[vector // 2 * OUTPUTS + output] >> np.uint32(4 * (vector % 2))) & _NIBBLES
                if above > 0:
                    plane = words[(_WORDS // 2 + vector * above // 8) * OUTPUTS + output]
                    high = (plane >> np.uint32(vector * above % 8)) & np.uint32(0x01010101 * (2**above - 1))
                    word |= high << np.uint32(4)
                row[chunk * _WORDS + vector] = word
        for start in range(0, num_inputs, group):
            place = scales[panel, start // group]
            scale = half[place[0, output]]
            minimum = half[place[1, output]] if place.shape[0] > 1 else np.float32(0)
            for j in range(start, min(start + group, num_inputs)):
                out[i, j] = scale * np.float32(np.int32(numbers[j]) - zero) + minimum


_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""The float32 value of each float16 bit pattern."""


def _aligned(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Zeros that begin at a whole cache line."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    aligned: npt.NDArray[Any] = memory[start : start + num_bytes].view(dtype).reshape(shape)
    return aligned


class Panels:
    """Rows of a weight, coded alike, as panels. Owns: their memory, which stays where it is."""

    def __init__(self, num_outputs: int, num_inputs: int, coding: Coding, name: str) -> None:
        """All zeros, to be filled by `fill`; `name` is what people call the coding: a tensor type of GGUF, or int8."""
        self.name = name
        self.num_outputs = num_outputs
        self.num_inputs = num_inputs
        self.coding = coding
        num_panels, num_chunks = -(-num_outputs // OUTPUTS), -(-num_inputs // CHUNK)
        self.codes = _aligned((num_panels, num_chunks, coding.bits * CHUNK * OUTPUTS // 32), np.uint32)
        """[panels, chunks, words of four bytes]"""
        num_groups = num_chunks * (CHUNK // coding.group)
        self.scales = _aligned((num_panels, num_groups, 2 if coding.has_minimum else 1, OUTPUTS), np.float16)
        """[panels, groups, scale and minimum, outputs]"""

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def fill(self, first: int, coded: GroupCodes) -> None:
        """Puts rows in, from row `first`, a panel's first, on; whole panels, but for the last."""
        num_rows, num_groups = coded.scales.shape
        codes = coded.codes
        if codes.shape[1] != self.codes.shape[1] * CHUNK:
            codes = np.pad(codes, ((0, 0), (0, self.codes.shape[1] * CHUNK - codes.shape[1])))
        place = slice(first // OUTPUTS, -(-(first + num_rows) // OUTPUTS))
        _pack(codes.view(np.uint32), self.coding.bits, self.codes[place])
        numbers = (coded.scales, coded.minima) if self.coding.has_minimum else (coded.scales,)
        padding = ((0, -num_rows % OUTPUTS), (0, 0))
        with np.errstate(over="ignore"):
            for index, values in enumerate(numbers):
                rounded = np.pad(values.astype(np.float16), padding).reshape(-1, OUTPUTS, num_groups)
                self.scales[place, :num_groups, index] = rounded.transpose(0, 2, 1)

    def numbers(self, outputs: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """float32 [n, inputs] of these outputs."""
        out = np.empty((len(outputs), self.num_inputs), np.float32)
        coding = (self.coding.bits, self.coding.group, self.coding.zero)
        _unpack(self.codes, self.scales.view(np.uint16), coding, _HALF, outputs, out)
        return out
