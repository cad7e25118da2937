"""Unpack one block after another: the tensor types with blocks of 32 elements.

Every kernel takes the stored blocks `[num_blocks * block_bytes]`, the float32 result `[num_blocks * block_elements]`
to fill, and `half`, the float32 value of each of the 65,536 float16 bit patterns. Multiplications and additions are in
float32 in the order of the format's reference implementation, so the results are equal to the bit.

The layouts are those of `ggml-common.h`: a `_0` type is a scale `d`, a `_1` type a scale and a minimum `m`; nibbles of
byte i are the elements i (low) and i + 16 (high).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

HALF_BLOCK = 16

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
"""What the 16 codes of IQ4_NL and IQ4_XS stand for."""

FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""Twice what the 16 codes of the e2m1 format stand for; the block scale is halved in turn."""


kernel = compiled(nogil=True, boundscheck=False, error_model="numpy")
"""Compiles for one thread that holds no lock, and keeps the machine code on disk."""


@kernel
def u16(blocks: Bytes, at: int) -> np.int64:
    """The little-endian 16-bit number at byte `at`."""
    return np.int64(blocks[at]) | (np.int64(blocks[at + 1]) << 8)


@kernel
def unpack_q8_0(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | 32 signed bytes"""
    for block in range(blocks.size // 34):
        at, to = block * 34, block * 32
        d = half[u16(blocks, at)]
        for i in range(32):
            out[to + i] = np.float32(np.int8(blocks[at + 2 + i])) * d


@kernel
def unpack_q4_0(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | 16 bytes of nibbles, offset 8"""
    for block in range(blocks.size // 18):
        at, to = block * 18, block * 32
        d = half[u16(blocks, at)]
        for i in range(16):
            byte = np.int32(blocks[at + 2 + i])
            out[to + i] = d * np.float32((byte & 15) - 8)
            out[to + HALF_BLOCK + i] = d * np.float32((byte >> 4) - 8)


@kernel
def unpack_q4_1(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | m f16 | 16 bytes of nibbles"""
    for block in range(blocks.size // 20):
        at, to = block * 20, block * 32
        d, m = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for i in range(16):
            byte = np.int32(blocks[at + 4 + i])
            out[to + i] = d * np.float32(byte & 15) + m
            out[to + HALF_BLOCK + i] = d * np.float32(byte >> 4) + m


@kernel
def unpack_q5_0(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | 32 fifth bits | 16 bytes of nibbles, offset 16"""
    for block in range(blocks.size // 22):
        at, to = block * 22, block * 32
        d = half[u16(blocks, at)]
        low_bits, high_bits = np.int32(u16(blocks, at + 2)), np.int32(u16(blocks, at + 4))
        for i in range(16):
            byte = np.int32(blocks[at + 6 + i])
            out[to + i] = d * np.float32(((byte & 15) | ((low_bits >> i) & 1) << 4) - 16)
            out[to + HALF_BLOCK + i] = d * np.float32(((byte >> 4) | ((high_bits >> i) & 1) << 4) - 16)


@kernel
def unpack_q5_1(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | m f16 | 32 fifth bits | 16 bytes of nibbles"""
    for block in range(blocks.size // 24):
        at, to = block * 24, block * 32
        d, m = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        low_bits, high_bits = np.int32(u16(blocks, at + 4)), np.int32(u16(blocks, at + 6))
        for i in range(16):
            byte = np.int32(blocks[at + 8 + i])
            out[to + i] = d * np.float32((byte & 15) | ((low_bits >> i) & 1) << 4) + m
            out[to + HALF_BLOCK + i] = d * np.float32((byte >> 4) | ((high_bits >> i) & 1) << 4) + m


@kernel
def unpack_iq4_nl(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | 16 bytes of codes"""
    for block in range(blocks.size // 18):
        at, to = block * 18, block * 32
        d = half[u16(blocks, at)]
        for i in range(16):
            byte = blocks[at + 2 + i]
            out[to + i] = d * IQ4_VALUES[byte & 15]
            out[to + HALF_BLOCK + i] = d * IQ4_VALUES[byte >> 4]


@kernel
def unpack_mxfp4(blocks: Bytes, out: Floats, half: Floats) -> None:
    """Exponent e, the scale is 2 ** (e - 127) | 16 bytes of codes

    `half` is not used. The values are stored doubled, so the scale is halved: 2 ** (e - 128), exact in float32.
    """
    for block in range(blocks.size // 17):
        at, to = block * 17, block * 32
        d = np.float32(2.0 ** (np.float64(blocks[at]) - 128.0))
        for i in range(16):
            byte = blocks[at + 1 + i]
            out[to + i] = d * FP4_VALUES[byte & 15]
            out[to + HALF_BLOCK + i] = d * FP4_VALUES[byte >> 4]
