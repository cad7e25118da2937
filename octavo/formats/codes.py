"""Quantised weights as whole numbers: a code for each, and a scale (and a minimum) for each group of a row.

    weight = scale * (code - zero) + minimum

Every type here says the same numbers as `octavo.formats.dequantize` does, but for scales that the file itself keeps as
a product of two numbers: their float16 form is off by at most one part in 2,048.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.formats.block_kernels import IQ4_VALUES, Bytes, kernel, u16
from octavo.formats.ggml_types import GGML_TYPES
from octavo.formats.superblock_kernels import k_scale_and_min, q3_scale

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Coding(NamedTuple):
    """What a code means."""

    bits: int
    """4, 5, 6 or 8: codes are below 2 ** bits."""
    group: int
    """Neighbours in a row that share a scale: 16 or 32."""
    zero: int
    """The code that stands for 0, where there is no minimum."""
    has_minimum: bool = False

    @property
    def group_bytes(self) -> int:
        """Bytes of a group as they are kept: codes, scale and minimum, the last two in float16."""
        return self.group * self.bits // 8 + (4 if self.has_minimum else 2)


INT8 = Coding(8, 32, 128)
"""What weights that are no codes yet are made into."""


class GroupCodes(NamedTuple):
    """Rows as codes."""

    codes: Codes
    """[rows, inputs]"""
    scales: Floats
    """[rows, inputs / group]"""
    minima: Floats
    """As `scales`; zeros where the coding has none."""


@kernel
def _codes_q8_0(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 34):
        at, to = block * 34, block * 32
        scales[block] = half[u16(blocks, at)]
        for i in range(32):
            codes[to + i] = blocks[at + 2 + i] ^ np.uint8(128)


@kernel
def _codes_q4_0(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 18):
        at, to = block * 18, block * 32
        scales[block] = half[u16(blocks, at)]
        for i in range(16):
            codes[to + i] = blocks[at + 2 + i] & np.uint8(15)
            codes[to + 16 + i] = blocks[at + 2 + i] >> np.uint8(4)


@kernel
def _codes_q4_1(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 20):
        at, to = block * 20, block * 32
        scales[block], minima[block] = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for i in range(16):
            codes[to + i] = blocks[at + 4 + i] & np.uint8(15)
            codes[to + 16 + i] = blocks[at + 4 + i] >> np.uint8(4)


@kernel
def _fifth_bits(blocks: Bytes, at: int, codes: Codes, to: int) -> None:
    """Adds bit i of the 4 bytes at `at` to code i, as its fifth."""
    for i in range(32):
        codes[to + i] |= ((blocks[at + i // 8] >> np.uint8(i % 8)) & np.uint8(1)) << np.uint8(4)


@kernel
def _codes_q5_0(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 22):
        at, to = block * 22, block * 32
        scales[block] = half[u16(blocks, at)]
        for i in range(16):
            codes[to + i] = blocks[at + 6 + i] & np.uint8(15)
            codes[to + 16 + i] = blocks[at + 6 + i] >> np.uint8(4)
        _fifth_bits(blocks, at + 2, codes, to)


@kernel
def _codes_q5_1(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 24):
        at, to = block * 24, block * 32
        scales[block], minima[block] = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for i in range(16):
            codes[to + i] = blocks[at + 8 + i] & np.uint8(15)
            codes[to + 16 + i] = blocks[at + 8 + i] >> np.uint8(4)
        _fifth_bits(blocks, at + 4, codes, to)


@kernel
def _codes_iq4_nl(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 18):
        at, to = block * 18, block * 32
        scales[block] = half[u16(blocks, at)]
        for i in range(16):
            byte = blocks[at + 2 + i]
            codes[to + i] = np.uint8(IQ4_VALUES[byte & 15] + 128)
            codes[to + 16 + i] = np.uint8(IQ4_VALUES[byte >> 4] + 128)


@kernel
def _codes_q2_k(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 84):
        at, to = block * 84, block * 256
        d, dmin = half[u16(blocks, at + 80)], half[u16(blocks, at + 82)]
        for sub in range(16):
            scale = blocks[at + sub]
            scales[16 * block + sub] = d * np.float32(scale & 15)
            minima[16 * block + sub] = -dmin * np.float32(scale >> 4)
            values, shift = at + 16 + 32 * (sub // 8) + 16 * (sub % 2), np.uint8(2 * (sub // 2 % 4))
            for i in range(16):
                codes[to + 16 * sub + i] = (blocks[values + i] >> shift) & np.uint8(3)


@kernel
def _codes_q3_k(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 110):
        at, to = block * 110, block * 256
        d = half[u16(blocks, at + 108)]
        for sub in range(16):
            scales[16 * block + sub] = d * np.float32(q3_scale(blocks, at + 96, sub))
            values = at + 32 + 32 * (sub // 8) + 16 * (sub % 2)
            masks, mask_shift = at + 16 * (sub % 2), np.uint8(sub // 2)
            shift = np.uint8(2 * (sub // 2 % 4))
            for i in range(16):
                low = (blocks[values + i] >> shift) & np.uint8(3)
                high = (blocks[masks + i] >> mask_shift) & np.uint8(1)
                codes[to + 16 * sub + i] = low | (high << np.uint8(2))


@kernel
def _codes_q4_k(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 144):
        at, to = block * 144, block * 256
        d, dmin = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for sub in range(8):
            scale, minimum = k_scale_and_min(blocks, at + 4, sub)
            scales[8 * block + sub] = d * np.float32(scale)
            minima[8 * block + sub] = -dmin * np.float32(minimum)
        for pair in range(4):
            values, start = at + 16 + 32 * pair, to + 64 * pair
            for i in range(32):
                codes[start + i] = blocks[values + i] & np.uint8(15)
                codes[start + 32 + i] = blocks[values + i] >> np.uint8(4)


@kernel
def _codes_q5_k(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 176):
        at, to = block * 176, block * 256
        d, dmin = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for sub in range(8):
            scale, minimum = k_scale_and_min(blocks, at + 4, sub)
            scales[8 * block + sub] = d * np.float32(scale)
            minima[8 * block + sub] = -dmin * np.float32(minimum)
        for pair in range(4):
            values, start = at + 48 + 32 * pair, to + 64 * pair
            for i in range(32):
                byte, fifth = blocks[values + i], blocks[at + 16 + i] >> np.uint8(2 * pair)
                codes[start + i] = (byte & np.uint8(15)) | ((fifth & np.uint8(1)) << np.uint8(4))
                codes[start + 32 + i] = (byte >> np.uint8(4)) | ((fifth & np.uint8(2)) << np.uint8(3))


@kernel
def _codes_q6_k(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 210):
        at, to = block * 210, block * 256
        d = half[u16(blocks, at + 208)]
        for sub in range(16):
            scales[16 * block + sub] = d * np.float32(np.int8(blocks[at + 192 + sub]))
            half_index, quarter, first = sub // 8, sub // 2 % 4, 16 * (sub % 2)
            low = at + 64 * half_index + 32 * (quarter % 2) + first
            high = at + 128 + 32 * half_index + first
            low_shift, high_shift = np.uint8(4 * (quarter // 2)), np.uint8(2 * quarter)
            for i in range(16):
                nibble = (blocks[low + i] >> low_shift) & np.uint8(15)
                codes[to + 16 * sub + i] = nibble | (((blocks[high + i] >> high_shift) & np.uint8(3)) << np.uint8(4))


@kernel
def _codes_iq4_xs(blocks: Bytes, codes: Codes, scales: Floats, minima: Floats, half: Floats) -> None:
    for block in range(blocks.size // 136):
        at, to = block * 136, block * 256
        d, high = half[u16(blocks, at)], u16(blocks, at + 2)
        for sub in range(8):
            low = (np.int64(blocks[at + 4 + sub // 2]) >> (4 * (sub % 2))) & 15
            scales[8 * block + sub] = d * np.float32((low | (((high >> (2 * sub)) & 3) << 4)) - 32)
            for i in range(16):
                byte = blocks[at + 8 + 16 * sub + i]
                codes[to + 32 * sub + i] = np.uint8(IQ4_VALUES[byte & 15] + 128)
                codes[to + 32 * sub + 16 + i] = np.uint8(IQ4_VALUES[byte >> 4] + 128)


_KERNELS: dict[str, tuple[Coding, Callable[[Any, Any, Any, Any, Any], None]]] = {
    "Q8_0": (INT8, _codes_q8_0),
    "Q4_0": (Coding(4, 32, 8), _codes_q4_0),
    "Q4_1": (Coding(4, 32, 0, has_minimum=True), _codes_q4_1),
    "Q5_0": (Coding(5, 32, 16), _codes_q5_0),
    "Q5_1": (Coding(5, 32, 0, has_minimum=True), _codes_q5_1),
    "IQ4_NL": (INT8, _codes_iq4_nl),
    "Q2_K": (Coding(4, 16, 0, has_minimum=True), _codes_q2_k),
    "Q3_K": (Coding(4, 16, 4), _codes_q3_k),
    "Q4_K": (Coding(4, 32, 0, has_minimum=True), _codes_q4_k),
    "Q5_K": (Coding(5, 32, 0, has_minimum=True), _codes_q5_k),
    "Q6_K": (Coding(6, 16, 32), _codes_q6_k),
    "IQ4_XS": (INT8, _codes_iq4_xs),
}

CODINGS: dict[str, Coding] = {name: coding for name, (coding, _) in _KERNELS.items()}
"""Tensor type -> its codes. Types that are absent have no codes: numbers that mean themselves, or none known here."""

_BLOCKS = {kind.name: kind for kind in GGML_TYPES.values()}
_HALF: Floats = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def read_codes(raw: Bytes, type_name: str, num_inputs: int) -> GroupCodes:
    """The rows of `num_inputs` numbers each whose stored bytes are `raw`, whole blocks of a type in `CODINGS`."""
    coding, unpack = _KERNELS[type_name]
    kind = _BLOCKS[type_name]
    num_rows = raw.size // kind.block_bytes * kind.block_elements // num_inputs
    codes = np.empty((num_rows, num_inputs), np.uint8)
    scales, minima = (make((num_rows, num_inputs // coding.group), np.float32) for make in (np.empty, np.zeros))
    blocks = raw.reshape(-1).view()
    blocks.flags.writeable = False
    unpack(blocks, codes.reshape(-1), scales.reshape(-1), minima.reshape(-1), _HALF)
    return GroupCodes(codes, scales, minima)


@kernel
def _largest(bits: npt.NDArray[np.uint32], group: int, largest: npt.NDArray[np.uint32]) -> None:
    """The largest magnitude of each group; all as bits of float32, whose order is that of whole numbers, NaN above."""
    for number in range(largest.size):
        found = np.uint32(0)
        for i in range(group):
            found = max(found, bits[number * group + i] & np.uint32(0x7FFFFFFF))
        largest[number] = found


@kernel
def _round_to_codes(rows: Floats, scales: Floats, group: int, zero: int, codes: Codes) -> None:
    for number in range(scales.size):
        scale = scales[number]
        for i in range(number * group, (number + 1) * group):
            steps = np.rint(rows[i] / scale)
            is_number = abs(steps) <= np.float32(3.4028235e38)
            code = np.int32(min(max(steps, np.float32(-127)), np.float32(127))) if is_number else np.int32(0)
            codes[i] = np.uint8(code + zero)


def make_codes(rows: Floats) -> GroupCodes:
    """Codes of `INT8` for contiguous rows [rows, inputs] of whole groups: of each group the largest magnitude becomes
    127."""
    scales, codes = np.empty((len(rows), rows.shape[1] // INT8.group), np.float32), np.empty(rows.shape, np.uint8)
    _largest(rows.reshape(-1).view(np.uint32), INT8.group, scales.reshape(-1).view(np.uint32))
    with np.errstate(over="ignore", invalid="ignore"):
        scales = (scales / np.float32(127)).astype(np.float16).astype(np.float32)
    _round_to_codes(rows.reshape(-1), scales.reshape(-1), INT8.group, INT8.zero, codes.reshape(-1))
    return GroupCodes(codes, scales, np.zeros_like(scales))
