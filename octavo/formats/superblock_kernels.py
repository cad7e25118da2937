"""Unpack one block after another: the tensor types with blocks of 256 elements (K types and IQ4_XS).

Signature and exactness are those of `octavo.formats.block_kernels`. A super-block is cut into sub-blocks of 16 or 32
elements with small integer scales of their own, which the super-block's float16 `d` (and `dmin`) multiply.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.block_kernels import HALF_BLOCK, IQ4_VALUES, Bytes, Floats, kernel, u16


@kernel
def unpack_q2_k(blocks: Bytes, out: Floats, half: Floats) -> None:
    """16 bytes, scale (low nibble) and minimum (high) per 16 elements | 64 bytes of 2-bit values | d f16 | dmin f16

    The bits 2 j of the 32 bytes of a half are its elements 32 j to 32 j + 31.
    """
    for block in range(blocks.size // 84):
        at, to = block * 84, block * 256
        d, dmin = half[u16(blocks, at + 80)], half[u16(blocks, at + 82)]
        for sub in range(16):
            scale = blocks[at + sub]
            dl, ml = d * np.float32(scale & 15), dmin * np.float32(scale >> 4)
            values = at + 16 + 32 * (sub // 8) + 16 * (sub % 2)
            shift = 2 * (sub // 2 % 4)
            for i in range(16):
                out[to + 16 * sub + i] = dl * np.float32((blocks[values + i] >> shift) & 3) - ml


@kernel
def q3_scale(blocks: Bytes, at: int, sub: int) -> np.int32:
    """The 6-bit scale of 16 elements: 4 low bits from bytes 0 to 7 (nibbles), 2 high bits from bytes 8 to 11."""
    low = (np.int32(blocks[at + sub % 8]) >> (4 * (sub // 8))) & 15
    high = (np.int32(blocks[at + 8 + sub % 4]) >> (2 * (sub // 4))) & 3
    return (low | (high << 4)) - 32


@kernel
def unpack_q3_k(blocks: Bytes, out: Floats, half: Floats) -> None:
    """32 bytes of third bits | 64 bytes of 2-bit values | 12 bytes of 6-bit scales | d f16

    The third bit set means that 4 is not subtracted.
    """
    for block in range(blocks.size // 110):
        at, to = block * 110, block * 256
        d = half[u16(blocks, at + 108)]
        for sub in range(16):
            dl = d * np.float32(q3_scale(blocks, at + 96, sub))
            values = at + 32 + 32 * (sub // 8) + 16 * (sub % 2)
            masks, mask_shift = at + 16 * (sub % 2), sub // 2
            shift = 2 * (sub // 2 % 4)
            for i in range(16):
                low = (np.int32(blocks[values + i]) >> shift) & 3
                offset = 4 - (((np.int32(blocks[masks + i]) >> mask_shift) & 1) << 2)
                out[to + 16 * sub + i] = dl * np.float32(low - offset)


@kernel
def k_scale_and_min(blocks: Bytes, at: int, sub: int) -> tuple[np.int32, np.int32]:
    """The 6-bit scale and minimum of 32 elements, from the 12 bytes that Q4_K and Q5_K share.

    Sub-blocks 0 to 3 have them whole in bytes 0 to 3 and 4 to 7; 4 to 7 have the low nibbles in bytes 8 to 11 and the
    two high bits on top of bytes 0 to 3 and 4 to 7.
    """
    if sub < 4:
        return np.int32(blocks[at + sub]) & 63, np.int32(blocks[at + 4 + sub]) & 63
    nibbles = np.int32(blocks[at + 4 + sub])
    scale = (nibbles & 15) | ((np.int32(blocks[at + sub - 4]) >> 6) << 4)
    minimum = (nibbles >> 4) | ((np.int32(blocks[at + sub]) >> 6) << 4)
    return scale, minimum


@kernel
def unpack_q4_k(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | dmin f16 | 12 bytes of scales | 128 bytes of nibbles, 32 bytes for each 64 elements"""
    for block in range(blocks.size // 144):
        at, to = block * 144, block * 256
        d, dmin = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for pair in range(4):
            scale, minimum = k_scale_and_min(blocks, at + 4, 2 * pair)
            low_d, low_m = d * np.float32(scale), dmin * np.float32(minimum)
            scale, minimum = k_scale_and_min(blocks, at + 4, 2 * pair + 1)
            high_d, high_m = d * np.float32(scale), dmin * np.float32(minimum)
            values, start = at + 16 + 32 * pair, to + 64 * pair
            for i in range(32):
                byte = np.int32(blocks[values + i])
                out[start + i] = low_d * np.float32(byte & 15) - low_m
                out[start + 32 + i] = high_d * np.float32(byte >> 4) - high_m


@kernel
def unpack_q5_k(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | dmin f16 | 12 bytes of scales | 32 bytes, bit s the fifth bit in sub-block s | 128 bytes of nibbles"""
    for block in range(blocks.size // 176):
        at, to = block * 176, block * 256
        d, dmin = half[u16(blocks, at)], half[u16(blocks, at + 2)]
        for pair in range(4):
            scale, minimum = k_scale_and_min(blocks, at + 4, 2 * pair)
            low_d, low_m = d * np.float32(scale), dmin * np.float32(minimum)
            scale, minimum = k_scale_and_min(blocks, at + 4, 2 * pair + 1)
            high_d, high_m = d * np.float32(scale), dmin * np.float32(minimum)
            values, start = at + 48 + 32 * pair, to + 64 * pair
            for i in range(32):
                byte, fifth = np.int32(blocks[values + i]), np.int32(blocks[at + 16 + i]) >> (2 * pair)
                out[start + i] = low_d * np.float32((byte & 15) | ((fifth & 1) << 4)) - low_m
                out[start + 32 + i] = high_d * np.float32((byte >> 4) | ((fifth & 2) << 3)) - high_m


@kernel
def unpack_q6_k(blocks: Bytes, out: Floats, half: Floats) -> None:
    """128 bytes of low nibbles | 64 bytes of 2 high bits | 16 signed bytes, scale per 16 elements | d f16

    In each half of 128 elements: element 32 j + i has its nibble in byte 32 (j % 2) + i (the high one for j above 1)
    and its high bits in bits 2 j of byte i.
    """
    for block in range(blocks.size // 210):
        at, to = block * 210, block * 256
        d = half[u16(blocks, at + 208)]
        for sub in range(16):
            dl = d * np.float32(np.int8(blocks[at + 192 + sub]))
            half_index, quarter, first = sub // 8, sub // 2 % 4, 16 * (sub % 2)
            low = at + 64 * half_index + 32 * (quarter % 2) + first
            high = at + 128 + 32 * half_index + first
            low_shift, high_shift = 4 * (quarter // 2), 2 * quarter
            for i in range(16):
                value = ((np.int32(blocks[low + i]) >> low_shift) & 15) | (
                    ((np.int32(blocks[high + i]) >> high_shift) & 3) << 4
                )
                out[to + 16 * sub + i] = dl * np.float32(value - 32)


@kernel
def unpack_iq4_xs(blocks: Bytes, out: Floats, half: Floats) -> None:
    """d f16 | 2 bytes, 2 high bits of 8 scales | 4 bytes, their nibbles | 128 bytes of codes, 16 for 32 elements"""
    for block in range(blocks.size // 136):
        at, to = block * 136, block * 256
        d, high = half[u16(blocks, at)], u16(blocks, at + 2)
        for sub in range(8):
            low = (np.int64(blocks[at + 4 + sub // 2]) >> (4 * (sub % 2))) & 15
            dl = d * np.float32((low | (((high >> (2 * sub)) & 3) << 4)) - 32)
            values, start = at + 8 + 16 * sub, to + 32 * sub
            for i in range(16):
                byte = blocks[values + i]
                out[start + i] = dl * IQ4_VALUES[byte & 15]
                out[start + HALF_BLOCK + i] = dl * IQ4_VALUES[byte >> 4]
