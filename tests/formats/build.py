"""Small model files, right and wrong, for the tests of the readers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.formats.ggml_types import GGML_TYPES

TYPE_IDS = {kind.name: type_id for type_id, kind in GGML_TYPES.items()}


def string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """A metadata value with its type: bool, int (u32), float (f32), str, or a list of one of them."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, Sequence):
        elements = [value(element) for element in item]
        kind = elements[0][:4] if elements else struct.pack("<I", 4)
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(elements)) + b"".join(e[4:] for e in elements)
    raise TypeError(type(item))


def tensor_header(name: str, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + dimensions + struct.pack("<IQ", type_id, offset)


def gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, Sequence[int], bytes]] | None = None) -> bytes:
    """A whole file: metadata and tensors `{name: (type, shape, stored bytes)}`."""
    headers, data = b"", b""
    for name, (kind, shape, raw) in (tensors or {}).items():
        headers += tensor_header(name, shape, TYPE_IDS[kind], len(data))
        data += raw + bytes(-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors or {}), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items()) + headers
    return head + bytes(-len(head) % 32) + data


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def safetensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    names = {"float32": "F32", "float16": "F16", "int8": "I8"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data
