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
    """`codes` [up to 16, chunks * 8] and `out` [chunks, words] as words of four bytes, for one panel."""
    num_outputs = codes.shape[0]
    above = bits - 4
    for chunk in range(out.shape[0]):
        for output in range(num_outputs):
            for vector in range(_WORDS):
                word = codes[output, chunk * _WORDS + vector]
                if bits == 8:
                    out[chunk, vector * OUTPUTS + output] = word
                    continue
                shift = np.uint32(4 * (vector % 2))
                out[chunk, vector // 2 * OUTPUTS + output] |= (word & _NIBBLES) << shift
                if above > 0:
                    plane = _WORDS // 2 + vector * above // 8
                    shift = np.uint32(vector * above % 8)
                    high = (word >> np.uint32(4)) & np.uint32(0x01010101 * (2**above - 1))
                    out[chunk, plane * OUTPUTS + output] |= high << shift


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
        words = np.zeros((num_rows, self.codes.shape[1] * _WORDS), np.uint32)
        words.view(np.uint8)[:, : coded.codes.shape[1]] = coded.codes
        panel = first // OUTPUTS
        for start in range(0, num_rows, OUTPUTS):
            _pack(words[start : start + OUTPUTS], self.coding.bits, self.codes[panel + start // OUTPUTS])
        numbers = (coded.scales, coded.minima) if self.coding.has_minimum else (coded.scales,)
        with np.errstate(over="ignore"):
            for place, values in enumerate(numbers):
                padded = np.zeros((-(-num_rows // OUTPUTS) * OUTPUTS, num_groups), np.float16)
                padded[:num_rows] = values
                target = self.scales[panel : panel + len(padded) // OUTPUTS, :num_groups, place]
                target[:] = padded.reshape(-1, OUTPUTS, num_groups).transpose(0, 2, 1)

    def numbers(self, outputs: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """float32 [n, inputs] of these outputs."""
        out = np.empty((len(outputs), self.num_inputs), np.float32)
        coding = (self.coding.bits, self.coding.group, self.coding.zero)
        _unpack(self.codes, self.scales.view(np.uint16), coding, _HALF, outputs, out)
        return out
