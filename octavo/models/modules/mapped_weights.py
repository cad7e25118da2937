"""Memory that a model's weights need no more once they are kept in another form: pages of files, and what was freed."""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import torch

_MAPS = Path("/proc/self/maps")


class MappedFiles:
    """The memory of this process that is a file's, as it was when this was made.

    Owns: a list of addresses. Without `madvise` or a list of mappings (on other systems than Linux) it is empty.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        if _c_function("madvise") is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        try:
            lines = _MAPS.read_text().splitlines()
        except OSError:
            return
        for line in lines:  # start-stop permissions offset device inode path, by address
            addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
            if inode != "0":
                start, stop = (int(address, 16) for address in addresses.split("-"))
                self._starts.append(start)
                self._stops.append(stop)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether all of a contiguous tensor lies in one mapping of a file."""
        place = bisect_right(self._starts, tensor.data_ptr()) - 1
        is_inside = place >= 0 and tensor.data_ptr() + tensor.nbytes <= self._stops[place]
        return is_inside and tensor.is_contiguous()

    def let_go(self, tensor: torch.Tensor) -> None:
        """Take the pages of `tensor` out of this process's memory if they are a file's, but for those it shares.

        Whoever reads the tensor again gets its numbers from the file.
        """
        if not self.holds(tensor):
            return
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > first:
            _c_function("madvise")(first, stop - first, mmap.MADV_DONTNEED)


def give_back_freed() -> None:
    """Return memory that was freed to the system, where the C library keeps it (glibc)."""
    if (trim := _c_function("malloc_trim")) is not None:
        trim(0)


@cache
def _c_function(name: str) -> Any:
    """A C function whose first argument is an address or a size; None where there is none."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_size_t, *([ctypes.c_size_t, ctypes.c_int] if name == "madvise" else [])]
    return function
