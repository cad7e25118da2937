"""Read a GGUF file: its metadata and where its tensors lie. Nothing is copied but the header's small values.

A GGUF file (versions 2 and 3, little-endian) is

    "GGUF" | version u32 | number of tensors u64 | number of metadata entries u64
    metadata:  key string | type u32 | value                     a string is its length u64, then its bytes;
                                                                 an array is element type u32 | length u64 | elements
    tensors:   name string | number of dimensions u32 | dimensions u64, fastest first | type u32 | offset u64
    padding to `general.alignment` (32)
    tensor data, each at its offset from here

The file is not trusted: every count, length and offset is checked against the bytes that are there before it is used,
so time and memory stay proportional to the header whatever the file says.

Views are the standard library's, not numpy's: `octavo plan` reads headers, and starts in half the time without numpy.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from octavo.errors import ModelFileError
from octavo.formats.ggml_types import GGML_TYPES

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
"""struct format and bytes of the fixed-size metadata types."""

MAX_METADATA_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 20
MAX_STRING_ARRAY = 1 << 24
MAX_STRING_BYTES = 1 << 24
MAX_DIMENSIONS = 8
"""Bounds far above any real file (a vocabulary has under a million words, a model under 100,000 tensors)."""

KEPT_BYTES = 32 << 20
"""Bytes of tensors handed out before the memory that reading them took is given back."""
_U64 = struct.Struct("<Q")
_REMEDY = "Download the file again; it is damaged or was not written by a GGUF converter."

ScalarValue = str | int | float | bool
T = TypeVar("T", str, int, float, bool)


class GGUFArray:
    """An array in the metadata, decoded when asked for.

    **Owns:** nothing but the place of its elements in the mapped file. **Never:** changes.
    """

    def __init__(self, buffer: mmap.mmap, element_type: int, length: int, start: int, stop: int) -> None:
        self._buffer = buffer
        self._start = start
        self._stop = stop
        self.element_type = element_type
        self.length = length

    def __len__(self) -> int:
        return self.length

    @property
    def is_strings(self) -> bool:
        return self.element_type == _STRING

    def numbers(self) -> memoryview[Any]:
        """The elements as a read-only view, `[length]`. Raises `ModelFileError` for an array of strings."""
        if self.is_strings:
            raise ModelFileError("The GGUF metadata holds strings where numbers belong.", remedy=_REMEDY)
        return self.stored().cast(_SCALARS[self.element_type][0])  # type: ignore[call-overload, no-any-return]

    def byte_strings(self) -> list[bytes]:
        """The elements as bytes. Raises `ModelFileError` for an array of numbers."""
        if not self.is_strings:
            raise ModelFileError("The GGUF metadata holds numbers where strings belong.", remedy=_REMEDY)
        blob = self._buffer[self._start : self._stop]
        unpack, position = _U64.unpack_from, 0
        strings: list[bytes] = []
        append = strings.append
        for _ in range(self.length):
            start = position + 8
            position = start + unpack(blob, position)[0]
            append(blob[start:position])
        return strings

    def texts_at(self, indices: Sequence[int]) -> list[str]:
        """The elements at some ascending indices as text; bytes that are no UTF-8 become U+FFFD.

        Raises `ModelFileError` for an array of numbers.
        """
        if not self.is_strings:
            raise ModelFileError("The GGUF metadata holds numbers where strings belong.", remedy=_REMEDY)
        wanted, texts, position = iter(indices), [], self._start
        following = next(wanted, -1)
        for index in range(self.length):
            if following < 0:
                break
            start = position + 8
            position = start + _U64.unpack_from(self._buffer, position)[0]
            if index == following:
                texts.append(self._buffer[start:position].decode("utf-8", "replace"))
                following = next(wanted, -1)
        return texts

    def stored(self) -> memoryview:
        """The elements as they lie in the file, lengths of strings included: a read-only view, `[bytes]`."""
        return memoryview(self._buffer)[self._start : self._stop]

    def strings(self) -> list[str]:
        """The elements as text. Raises `ModelFileError` for an array of numbers and for text that is not UTF-8."""
        try:
            return [string.decode() for string in self.byte_strings()]
        except UnicodeDecodeError as error:
            raise ModelFileError(f"A string in the GGUF metadata is not UTF-8: {error}.", remedy=_REMEDY) from None

    def tolist(self) -> list[Any]:
        return self.strings() if self.is_strings else self.numbers().tolist()


class TensorInfo(NamedTuple):
    """Where a tensor lies and how it is stored."""

    type: str
    """Name in `GGML_TYPES`, such as `Q4_K`."""
    shape: tuple[int, ...]
    """Slowest dimension first, as numpy and torch count."""
    offset: int
    """Byte offset in the file."""
    num_bytes: int


class GGUFHeader:
    """What the files of a model say: the metadata of the first, and where the tensors of all of them lie.

    **Owns:** nothing but what it was given. **Never:** changes.
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, ScalarValue | GGUFArray], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The scalar metadata value `key` as a `kind`.

        Raises `ModelFileError` when it is absent and there is no default, or is of another kind.
        """
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(f"The GGUF metadata has no {key}.", remedy=_REMEDY)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = "an array" if isinstance(value, GGUFArray) else f"{value!r}"
            raise ModelFileError(f"The GGUF metadata's {key} is {found}, not a {kind.__name__}.", remedy=_REMEDY)
        return value

    def array(self, key: str) -> GGUFArray | None:
        """The array `key`, or None when it is absent. Raises `ModelFileError` when it is not an array."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, GGUFArray):
            raise ModelFileError(f"The GGUF metadata's {key} is {value!r}, not an array.", remedy=_REMEDY)
        return value


class GGUFFile(GGUFHeader):
    """A GGUF file's header, with its data mapped into memory.

    **Owns:** the mapping (closed when the last view of it is gone). **Never:** reads tensor data itself.

    Raises `ModelFileError` when the file is missing, truncated or not a well-formed GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self._buffer, self._handed_out_bytes = _map_file(path), 0
        try:
            super().__init__(path, *_parse(self._buffer))
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error.fact}", remedy=error.remedy or _REMEDY) from None

    def raw(self, name: str) -> memoryview:
        """The stored bytes of tensor `name`, a read-only view `[num_bytes]` of the mapped file.

        Raises `ModelFileError` for an unknown name.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path} holds no tensor {name!r}.", remedy=_REMEDY)
        if self._handed_out_bytes > KEPT_BYTES:
            self.release_pages()
        self._handed_out_bytes += info.num_bytes
        return memoryview(self._buffer)[info.offset : info.offset + info.num_bytes]

    def release_pages(self) -> None:
        """Give back the memory that reading the mapped file took; what is read again comes from the disk's cache."""
        self._handed_out_bytes = 0
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._buffer.madvise(mmap.MADV_DONTNEED)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.num_bytes for info in self.tensors.values())


def _parse(buffer: mmap.mmap) -> tuple[dict[str, ScalarValue | GGUFArray], dict[str, TensorInfo]]:
    """(metadata, tensors)"""
    cursor = _Cursor(buffer)
    num_tensors, num_entries = _read_preamble(cursor)
    metadata = _read_metadata(cursor, num_entries)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        shown = alignment if isinstance(alignment, int | str | float) else "an array"
        raise ModelFileError(f"general.alignment is {shown}, it must be a number from 1 to 1048576.")
    headers = _read_tensor_headers(cursor, num_tensors)
    data_start = -(-cursor.position // alignment) * alignment
    return metadata, _place_tensors(headers, data_start, len(buffer))


class _Cursor:
    """A reading position in the mapped file that refuses to run past its end."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def take(self, num_bytes: int) -> int:
        """Move on by `num_bytes` and return where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise ModelFileError(
                f"the header ends too early: {num_bytes} bytes are needed at byte {start} of {self.size}."
            )
        self.position = start + num_bytes
        return start

    def unpack(self, code: str, num_bytes: int) -> Any:
        return struct.unpack_from("<" + code, self.buffer, self.take(num_bytes))[0]

    def string(self, what: str) -> str:
        length = self.unpack("Q", 8)
        if length > MAX_STRING_BYTES:
            raise ModelFileError(f"{what} at byte {self.position} claims a length of {length} bytes.")
        start = self.take(length)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{what} at byte {start} is not UTF-8.") from None


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(f"{path} is empty.", remedy="Download the file again.") from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path and its permissions."
        ) from None


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """(number of tensors, number of metadata entries)"""
    start = cursor.take(4)
    magic = cursor.buffer[start : start + 4]
    if magic != b"GGUF":
        raise ModelFileError(
            f"it begins with {magic!r} instead of b'GGUF', so it is not a GGUF file.",
            remedy="Give a .gguf file, or a folder with config.json and safetensors files.",
        )
    version = cursor.unpack("I", 4)
    if version & 0xFFFF == 0:
        raise ModelFileError("it is a big-endian GGUF file.", remedy="Convert it to little-endian.")
    if version not in (2, 3):
        raise ModelFileError(
            f"it has GGUF version {version}; versions 2 and 3 can be read.", remedy="Convert the model again."
        )
    num_tensors, num_entries = cursor.unpack("Q", 8), cursor.unpack("Q", 8)
    # The shortest tensor entry has 24 bytes (empty name, no dimensions), the shortest metadata entry 13.
    for count, smallest, most, what in (
        (num_tensors, 24, MAX_TENSORS, "tensors"),
        (num_entries, 13, MAX_METADATA_ENTRIES, "metadata entries"),
    ):
        if count > min(most, cursor.remaining // smallest):
            raise ModelFileError(f"it claims {count} {what}, more than its {cursor.size} bytes can hold.")
    return num_tensors, num_entries


def _read_metadata(cursor: _Cursor, num_entries: int) -> dict[str, ScalarValue | GGUFArray]:
    metadata: dict[str, ScalarValue | GGUFArray] = {}
    for _ in range(num_entries):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ModelFileError(f"the metadata key {key!r} appears twice.")
        value_type = cursor.unpack("I", 4)
        if value_type == _STRING:
            metadata[key] = cursor.string(f"the metadata value {key!r}")
        elif value_type == _ARRAY:
            metadata[key] = _read_array(cursor, key)
        elif value_type in _SCALARS:
            metadata[key] = cursor.unpack(*_SCALARS[value_type])
        else:
            raise ModelFileError(f"the metadata value {key!r} has the unknown type {value_type}.")
    return metadata


def _read_array(cursor: _Cursor, key: str) -> GGUFArray:
    element_type, length = cursor.unpack("I", 4), cursor.unpack("Q", 8)
    start = cursor.position
    if element_type in _SCALARS:
        cursor.take(length * _SCALARS[element_type][1])
    elif element_type == _STRING:
        if length > min(MAX_STRING_ARRAY, cursor.remaining // 8):
            raise ModelFileError(f"the array {key!r} claims {length} strings, more than the file can hold.")
        # A vocabulary has hundreds of thousands of strings, so this loop does nothing but step over them.
        buffer, size, unpack, position = cursor.buffer, cursor.size - 8, _U64.unpack_from, start
        for _ in range(length):
            if position > size:
                raise ModelFileError(f"the header ends inside the array {key!r}.")
            position += 8 + unpack(buffer, position)[0]
        cursor.take(position - start)
    else:
        raise ModelFileError(f"the array {key!r} has elements of type {element_type}, which cannot be read.")
    return GGUFArray(cursor.buffer, element_type, length, start, cursor.position)


class _TensorHeader(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    """Bytes from the start of the data section."""


def _read_tensor_headers(cursor: _Cursor, num_tensors: int) -> list[_TensorHeader]:
    headers: list[_TensorHeader] = []
    for _ in range(num_tensors):
        name = cursor.string("a tensor name")
        num_dimensions = cursor.unpack("I", 4)
        if num_dimensions > MAX_DIMENSIONS:
            raise ModelFileError(f"the tensor {name!r} claims {num_dimensions} dimensions, at most 8 are possible.")
        fastest_first = struct.unpack_from(f"<{num_dimensions}Q", cursor.buffer, cursor.take(8 * num_dimensions))
        type_id, offset = cursor.unpack("I", 4), cursor.unpack("Q", 8)
        headers.append(_TensorHeader(name, fastest_first[::-1], type_id, offset))
    return headers


def _place_tensors(headers: list[_TensorHeader], data_start: int, file_size: int) -> dict[str, TensorInfo]:
    """Absolute places, after checking that each tensor lies inside the file."""
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_id, offset in headers:
        if name in tensors:
            raise ModelFileError(f"the tensor {name!r} appears twice.")
        if type_id not in GGML_TYPES:
            raise ModelFileError(
                f"the tensor {name!r} has the unknown type {type_id}.", remedy="Use a file with a known quantisation."
            )
        kind = GGML_TYPES[type_id]
        if not shape or 0 in shape or shape[-1] % kind.block_elements:
            raise ModelFileError(
                f"the tensor {name!r} has shape {list(shape)}, but rows of {kind.name} hold a multiple of "
                f"{kind.block_elements} elements and no dimension may be 0."
            )
        num_bytes = math.prod(shape) // kind.block_elements * kind.block_bytes
        stop = data_start + offset + num_bytes
        if stop > file_size:
            raise ModelFileError(
                f"the tensor {name!r} ends at byte {stop}, but the file has only {file_size}: it is truncated.",
                remedy="Download the file again.",
            )
        tensors[name] = TensorInfo(kind.name, shape, data_start + offset, num_bytes)
    return tensors
