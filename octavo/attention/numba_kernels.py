"""The kernels as C functions, compiled once per machine and kept on disk.

A kernel is specialised on the CPU's `VectorPath` and the cache's `Element`, and on nothing else but whether rows are
bfloat16 too. Numba keys what it caches by the CPU's name and features and by the values a kernel closes over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba import carray, cfunc, types

from octavo.attention.numba_attend import attend_step
from octavo.attention.numba_emit import BFLOAT16, FLOAT32, Element, VectorPath
from octavo.attention.numba_job import JOB
from octavo.attention.numba_vectors import address_of
from octavo.attention.numba_write import WRITE_JOB, write_step

_JOB_POINTER = types.CPointer(numba.from_dtype(JOB))
_WRITE_POINTER = types.CPointer(numba.from_dtype(WRITE_JOB))


@cache
def source_digest() -> str:
    """Of all kernel sources: a kernel is compiled from several files, and numba watches only the outermost one's."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(__file__).parent.glob("numba_*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def vector_paths() -> tuple[VectorPath, ...]:
    """The paths that this CPU can take, best first."""
    features = llvmlite.binding.get_host_cpu_features()
    has = {name for name, is_there in features.items() if is_there}
    source, paths = source_digest(), []
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= has:
        if "avx512bf16" in has:
            paths.append(VectorPath("avx512_bf16", 16, source, has_half=True, has_dot=True))
        paths.append(VectorPath("avx512", 16, source, has_half=True))
    if {"avx2", "fma", "f16c"} <= has:
        paths.append(VectorPath("avx2", 8, source, has_half=True))
    return (*paths, VectorPath("plain", 4, source))


def row_element_of(path: VectorPath, query: Element, element: Element) -> Element:
    """How rows of queries are kept: bfloat16 where the CPU multiplies them as they are, else float32."""
    return BFLOAT16 if path.has_dot and query == element == BFLOAT16 else FLOAT32


def _cached(signature: Any, function: Callable[..., None]) -> Any:
    """Compiles, or loads from the cache on disk; without a writable place for a cache, compiles for this process."""
    try:
        return cfunc(signature, cache=True)(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        return cfunc(signature)(function)


@cache
def attend_kernel(path: VectorPath, row_element: Element, element: Element) -> Any:
    """Attention of a step; its argument is a `JOB`."""

    def attend(pointer: Any) -> None:
        attend_step(path, row_element, element, carray(pointer, 1)[0], address_of(pointer))

    return _cached(types.void(_JOB_POINTER), attend)


@cache
def write_kernel(path: VectorPath, element: Element) -> Any:
    """Cache write of a step; its argument is a `WRITE_JOB`."""

    def write(pointer: Any) -> None:
        write_step(path, element, carray(pointer, 1)[0], address_of(pointer))

    return _cached(types.void(_WRITE_POINTER), write)
