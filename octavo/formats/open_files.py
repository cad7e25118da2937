"""GGUF headers that this process has parsed already.

Locating, planning, loading weights and building the tokenizer all need the header of the same file. It takes from 20 ms
to over 100 ms to step through a large vocabulary, so it is parsed once for each file as it lies on the disk now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from octavo.errors import ModelFileError
from octavo.formats.gguf import GGUFFile, GGUFHeader, TensorInfo

MAX_OPEN_FILES = 64
"""Shards of one large model; a header without its vocabulary is small."""


class _Stamp(NamedTuple):
    """What changes when a file is replaced or written to."""

    device: int
    inode: int
    size: int
    modified_ns: int


class OpenFiles:
    """Parsed files by path.

    **Owns:** up to `max_files` headers, the least recently asked for dropped first. **Never:** answers with a header of
    a file that has been replaced, and never parses one file twice at once: threads that ask for it wait.
    """

    def __init__(self, max_files: int = MAX_OPEN_FILES) -> None:
        self._max_files = max_files
        self._files: OrderedDict[Path, tuple[_Stamp, GGUFFile]] = OrderedDict()
        self._lock = Lock()

    def open(self, path: Path) -> GGUFFile:
        """Raises `ModelFileError` when the file is missing, truncated or not a well-formed GGUF file."""
        with self._lock:
            stamp = _stamp(path)
            known = self._files.pop(path, None)
            file = known[1] if known is not None and known[0] == stamp else GGUFFile(path)
            self._files[path] = (stamp, file)
            while len(self._files) > self._max_files:
                self._files.popitem(last=False)
            return file


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path and its permissions."
        ) from None
    return _Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


_OPEN_FILES = OpenFiles()


def open_gguf(path: Path) -> GGUFFile:
    """The file at `path`, parsed now or, when it has not changed since, before. Errors as those of `GGUFFile`."""
    return _OPEN_FILES.open(path)


def open_gguf_header(paths: Sequence[Path]) -> GGUFHeader:
    """What the shards of one model say together; the metadata is all in the first.

    Raises `ModelFileError` when two of them hold a tensor of the same name, and as `open_gguf` does.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in paths:
        shard = open_gguf(path).tensors
        if twice := tensors.keys() & shard.keys():
            raise ModelFileError(
                f"{path} holds {sorted(twice)[0]!r}, which another shard of the model holds, too.",
                remedy="Download all shards again, from one place.",
            )
        tensors |= shard
    first = open_gguf(paths[0])
    return GGUFHeader(first.path, first.metadata, tensors)
