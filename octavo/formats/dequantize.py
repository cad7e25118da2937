"""From a tensor as stored to numbers: exact in float32, rounded to nearest even in bfloat16 and float16."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats import block_kernels, superblock_kernels
from octavo.formats.block_kernels import Bytes, Floats, kernel
from octavo.formats.ggml_types import GGML_TYPES, GGMLType

OUTPUT_DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
"""What `dequantize` can give. numpy has no bfloat16: its bits come as uint16."""

CHUNK_ELEMENTS = 1 << 16
"""Elements unpacked at a time: their float32 form (256 KiB) stays in a core's cache until it is rounded."""

_TYPES: dict[str, GGMLType] = {kind.name: kind for kind in GGML_TYPES.values()}


def _from_f16(blocks: Bytes, out: Floats, half: Floats) -> None:
    out[:] = blocks.view("<f2")


def _from_f32(blocks: Bytes, out: Floats, half: Floats) -> None:
    out[:] = blocks.view("<f4")


def _from_bf16(blocks: Bytes, out: Floats, half: Floats) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


KERNELS: dict[str, Callable[[Bytes, Floats, Floats], None]] = {
    "F32": _from_f32,
    "F16": _from_f16,
    "BF16": _from_bf16,
    "Q8_0": block_kernels.unpack_q8_0,
    "Q4_0": block_kernels.unpack_q4_0,
    "Q4_1": block_kernels.unpack_q4_1,
    "Q5_0": block_kernels.unpack_q5_0,
    "Q5_1": block_kernels.unpack_q5_1,
    "IQ4_NL": block_kernels.unpack_iq4_nl,
    "MXFP4": block_kernels.unpack_mxfp4,
    "Q2_K": superblock_kernels.unpack_q2_k,
    "Q3_K": superblock_kernels.unpack_q3_k,
    "Q4_K": superblock_kernels.unpack_q4_k,
    "Q5_K": superblock_kernels.unpack_q5_k,
    "Q6_K": superblock_kernels.unpack_q6_k,
    "IQ4_XS": superblock_kernels.unpack_iq4_xs,
}
"""Tensor type -> what unpacks its blocks into float32."""


@kernel
def round_to_bfloat16(values: npt.NDArray[np.uint32], out: npt.NDArray[np.uint16]) -> None:
    """The bfloat16 bits nearest to each float32 (given as its bits), ties to even; any NaN becomes the quiet one."""
    for i in range(values.size):
        bits = values[i]
        rounded = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(0x7FC0) if is_nan else rounded


def dequantize(
    raw: Bytes,
    type_name: str,
    shape: tuple[int, ...],
    dtype: str = "float32",
    *,
    out: npt.NDArray[Any] | None = None,
    num_threads: int = 0,
    elements_at_once: int = CHUNK_ELEMENTS,
) -> npt.NDArray[Any]:
    """The tensor whose stored bytes are `raw`, as an array of `shape` in `dtype` (bfloat16 as uint16 bits).

    `out`, when given, is filled and returned: a contiguous array of that shape and dtype.
    `num_threads` 0 takes every core this process may use; each unpacks `elements_at_once`.
    Raises `UnsupportedModelError` for a type that has no kernel, `ModelFileError` when `raw` has not the right size.
    """
    unpack = KERNELS.get(type_name)
    if unpack is None:
        raise UnsupportedModelError(
            f"Tensors of the type {type_name} cannot be dequantised.",
            remedy="Use a file with one of " + ", ".join(KERNELS) + ".",
        )
    kind = _TYPES[type_name]
    num_elements = math.prod(shape)
    if raw.size * kind.block_elements != num_elements * kind.block_bytes:
        raise ModelFileError(
            f"A tensor of shape {list(shape)} and type {type_name} has {raw.size} bytes, "
            f"{num_elements // kind.block_elements * kind.block_bytes} are needed.",
            remedy="Download the file again.",
        )
    if out is None:
        out = np.empty(shape, dtype=OUTPUT_DTYPES[dtype])
    blocks = raw.reshape(-1).view()
    blocks.flags.writeable = False
    num_blocks = num_elements // kind.block_elements
    step = elements_at_once // kind.block_elements
    _run(unpack, kind, blocks, out.reshape(-1), num_blocks, step, num_threads or _usable_cores())
    return out


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _run(
    unpack: Callable[[Bytes, Floats, Floats], None],
    kind: GGMLType,
    blocks: Bytes,
    out: npt.NDArray[Any],
    num_blocks: int,
    step: int,
    num_threads: int,
) -> None:
    """Unpack `num_blocks` blocks into the flat `out`, `step` at a time, in slices of equal size over the threads."""
    num_threads = min(num_threads, -(-num_blocks // step))

    def work(thread: int) -> None:
        scratch = np.empty(step * kind.block_elements, dtype=np.float32)
        stop = num_blocks * (thread + 1) // num_threads
        for first in range(num_blocks * thread // num_threads, stop, step):
            last = min(first + step, stop)
            target = out[first * kind.block_elements : last * kind.block_elements]
            source = blocks[first * kind.block_bytes : last * kind.block_bytes]
            values = target if out.dtype == np.float32 else scratch[: target.size]
            unpack(source, values, _HALF)
            if out.dtype == np.uint16:
                round_to_bfloat16(values.view(np.uint32), target)
            elif out.dtype == np.float16:
                with np.errstate(over="ignore", invalid="ignore"):
                    target[:] = values

    if num_threads <= 1:
        work(0)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, range(num_threads)))


_HALF: Floats = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""The float32 value of each float16 bit pattern."""
