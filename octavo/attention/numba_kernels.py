"""The kernels as C functions, compiled once per machine and kept on disk.

A kernel is specialised on the CPU's `VectorPath` and the cache's `Element`, and on nothing else but whether rows are
bfloat16 too. Numba keys what it keeps by the CPU's name and features and by the values that a kernel closes over.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
from numba import types

from octavo.attention.numba_attend import UNIT, attend_few_rows, attend_packed_rows, attend_step, attend_wide_rows
from octavo.attention.numba_emit import BFLOAT16, FLOAT32, Element, VectorPath
from octavo.attention.numba_job import JOB, PACKED_TILE_ROWS, TILE_ROWS
from octavo.attention.numba_memory import JobType
from octavo.attention.numba_tiles import uses_dot
from octavo.attention.numba_wide_tiles import score_rows_of, value_rows_of
from octavo.attention.numba_write import WRITE_JOB, write_step
from octavo.compiling import c_function

_JOB, _UNIT, _WRITE_JOB = JobType("Job", JOB), JobType("Unit", UNIT), JobType("WriteJob", WRITE_JOB)

_TILE_PERMISSION = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), by number: Documentation/arch/x86/xstate.rst of Linux."""


def allow_tiles() -> bool:
    """Asks the kernel (Linux on x86-64) to let this process use AMX tiles; whether it does."""
    try:
        syscall = ctypes.CDLL(None).syscall
    except (AttributeError, OSError):
        return False
    return bool(syscall(*_TILE_PERMISSION) == 0)


@cache
def vector_paths() -> tuple[VectorPath, ...]:
    """The paths that this CPU can take, best first."""
    features = llvmlite.binding.get_host_cpu_features()
    has = {name for name, is_there in features.items() if is_there}
    paths: list[VectorPath] = []
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= has:
        if "avx512bf16" in has:
            if {"amx-tile", "amx-bf16"} <= has and allow_tiles():
                paths.append(VectorPath("amx", 16, has_half=True, has_dot=True, has_tiles=True))
            paths.append(VectorPath("avx512_bf16", 16, has_half=True, has_dot=True))
        paths.append(VectorPath("avx512", 16, has_half=True))
    if {"avx2", "fma", "f16c"} <= has:
        paths.append(VectorPath("avx2", 8, has_half=True))
    return (*paths, VectorPath("plain", 4))


@cache
def source_digest(*others: Path) -> str:
    """Of all kernel sources, and of `others`: a kernel is compiled from several files, and numba watches only the
    outermost one's."""
    digest = hashlib.blake2b(digest_size=8)
    for file in (*sorted(Path(__file__).parent.glob("numba_*.py")), *others):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def row_element_of(path: VectorPath, query: Element, element: Element) -> Element:
    """How rows of queries are kept: bfloat16 where the CPU multiplies them as they are, else float32."""
    return BFLOAT16 if path.has_dot and query == element == BFLOAT16 else FLOAT32


def tile_rows_of(path: VectorPath, row_element: Element, element: Element) -> int:
    """Rows of a prefill's tile in the kernel for these."""
    return PACKED_TILE_ROWS if uses_dot(path, row_element, element) else TILE_ROWS


class KernelTable:
    """The kernels of one path, by their addresses; each is compiled, or read from disk, when first asked for.

    Owns: the compiled code, as long as the process lives, since jobs hold its addresses.
    """

    def __init__(self, path: VectorPath, *folders: Path) -> None:
        self.path = path
        self._folders = folders
        self._functions: dict[tuple[object, ...], Any] = {}

    def step(self) -> int:
        """Attention of a step. Its argument is a `JOB`, which holds the addresses of a unit's kernels."""

        def step(job: Any) -> None:
            attend_step(job)

        return self._address(("step",), types.void(_JOB), step)

    def few_rows(self, row_element: Element, element: Element) -> int:
        """Attention of a unit, segment by segment. Its arguments are a `JOB` and a `UNIT`."""
        path = self.path

        def few_rows(job: Any, unit: Any) -> None:
            attend_few_rows(path, row_element, element, job, unit)

        return self._address(("few rows", row_element, element), types.void(_JOB, _UNIT), few_rows)

    def many_rows(self, row_element: Element, element: Element) -> int:
        """The same for a tile of a prefill: over packed blocks where the CPU multiplies bfloat16, else over widened
        ones."""
        path, heights = self.path, (score_rows_of(self.path), value_rows_of(self.path))

        def packed_rows(job: Any, unit: Any) -> None:
            attend_packed_rows(path, job, unit)

        def wide_rows(job: Any, unit: Any) -> None:
            attend_wide_rows(path, heights, element, job, unit)

        if uses_dot(path, row_element, element):
            return self._address(("packed rows",), types.void(_JOB, _UNIT), packed_rows)
        return self._address(("wide rows", element), types.void(_JOB, _UNIT), wide_rows)

    def write(self, element: Element) -> int:
        """Cache write of a step; its argument is a `WRITE_JOB`."""
        path = self.path

        def write(job: Any) -> None:
            write_step(path, element, job)

        return self._address(("write", element), types.void(_WRITE_JOB), write)

    def _address(self, key: tuple[object, ...], signature: Any, function: Callable[..., None]) -> int:
        compiled = self._functions.get(key)
        if compiled is None:
            folders = [folder / source_digest() for folder in self._folders]
            compiled = self._functions[key] = c_function(signature, function, folders)
        return int(compiled.address)


@cache
def kernels_of(path: VectorPath, folder: Path | None = None) -> KernelTable:
    """The kernels of `path`, kept in `folder`; where that is None or cannot be written, beside their sources."""
    return KernelTable(path, *([folder] if folder is not None else []), kernel_folder())


def kernel_folder() -> Path:
    """Where kernels are kept unless another folder is named: beside their sources, as Python keeps its own."""
    return Path(__file__).parent / "__pycache__" / "kernels"
