"""Read what safetensors files say about themselves: names, dtypes, shapes and bytes, without loading a weight.

A safetensors file is: header length u64 | header, a JSON object of that many bytes | data. The header maps the name of
each tensor to `{"dtype", "shape", "data_offsets": [start, stop]}`, offsets counted from the end of the header.
Neither the header nor an index file is trusted.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import msgspec

from octavo.errors import ModelFileError

ELEMENT_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element, by the format's dtype names."""

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound on a header."""

MAX_DIMENSIONS = 64

_REMEDY = "Download the file again."


class SafetensorsInfo(NamedTuple):
    """One tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Byte offset in the file."""
    num_bytes: int


def read_safetensors_header(path: Path) -> dict[str, SafetensorsInfo]:
    """The tensors of one file by name, without its `__metadata__`.

    Raises `ModelFileError` when the file is missing, truncated, or says something impossible.
    """
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if file_size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, file_size - 8):
                raise ModelFileError(
                    f"{path} is not a safetensors file: its header claims {length} bytes, the file has {file_size}.",
                    remedy=_REMEDY,
                )
            text = file.read(length)
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path and its permissions."
        ) from None
    header = _decode(text, path)
    header.pop("__metadata__", None)
    tensors = {name: _tensor_info(path, name, entry, 8 + length, file_size) for name, entry in header.items()}
    _check_cover(path, tensors, 8 + length, file_size)
    return tensors


def read_safetensors_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, from a `model.safetensors.index.json`.

    Raises `ModelFileError` when the index is malformed or names a file outside its own folder.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.", remedy=_REMEDY) from None
    weight_map = _decode(text, path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelFileError(f"{path} has no weight_map of tensor names to file names.", remedy=_REMEDY)
    for name in set(weight_map.values()):
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or ":" in name:
            raise ModelFileError(
                f"{path} names the file {name[:200]!r}, which lies outside its folder.",
                remedy="Do not use this model: the index may have been made to read other files.",
            )
    return weight_map


def read_safetensors_total(path: Path) -> int | None:
    """Bytes of all tensors, as a `model.safetensors.index.json` gives them; None where it does not.

    Raises `ModelFileError` when the index is malformed.
    """
    try:
        metadata = _decode(path.read_bytes(), path).get("metadata")
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.", remedy=_REMEDY) from None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) and 0 < total < 1 << 63 else None


def _decode(text: bytes, path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} holds JSON that cannot be read: {error}.", remedy=_REMEDY) from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds a JSON {type(value).__name__}, not an object.", remedy=_REMEDY)
    return value


def _tensor_info(path: Path, name: str, entry: Any, data_start: int, file_size: int) -> SafetensorsInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not (isinstance(dtype, str) and _whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2):
        raise ModelFileError(f"{path}: the entry of tensor {name!r} is malformed.", remedy=_REMEDY)
    if dtype not in ELEMENT_BITS:
        raise ModelFileError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}.", remedy=_REMEDY)
    start, stop = offsets
    num_bits = math.prod(shape) * ELEMENT_BITS[dtype]
    if num_bits % 8 or stop - start != num_bits // 8:
        raise ModelFileError(
            f"{path}: tensor {name!r} of shape {shape} and dtype {dtype} needs {_in_bytes(num_bits)} bytes, "
            f"its offsets span {stop - start}.",
            remedy=_REMEDY,
        )
    if data_start + stop > file_size:
        raise ModelFileError(
            f"{path}: tensor {name!r} ends at byte {data_start + stop}, but the file has only {file_size}: "
            "it is truncated.",
            remedy=_REMEDY,
        )
    return SafetensorsInfo(dtype, tuple(shape), data_start + start, stop - start)


def _check_cover(path: Path, tensors: dict[str, SafetensorsInfo], data_start: int, file_size: int) -> None:
    """The format's rule: tensors lie end to end, so that no byte belongs to two of them or to none.

    A name that the header gives twice shows here, too: only one of its entries was kept.
    """
    position, before = data_start, "the header"
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if info.offset != position:
            what = "overlaps" if info.offset < position else "leaves a gap behind"
            raise ModelFileError(
                f"{path}: tensor {name!r} begins at byte {info.offset} and {what} {before}, which ends at byte "
                f"{position}.",
                remedy=_REMEDY,
            )
        position, before = info.offset + info.num_bytes, f"tensor {name!r}"
    if position != file_size:
        raise ModelFileError(
            f"{path}: {file_size - position} bytes behind {before} belong to no tensor.", remedy=_REMEDY
        )


def _in_bytes(num_bits: int) -> str:
    """Exactly, however large: elements of some dtypes are half a byte."""
    return str(num_bits // 8) + f"{num_bits % 8 / 8:g}"[1:]


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 63 for number in value)
    )
