from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.formats.safetensors import (
    SafetensorsInfo,
    read_safetensors_header,
    read_safetensors_index,
    read_safetensors_total,
)
from tests.formats import build

TENSORS = {"a.weight": np.ones((2, 3), dtype=np.float32), "b": np.zeros(5, dtype=np.int8)}


def header_of(tmp_path: Path, data: bytes) -> dict[str, SafetensorsInfo]:
    return read_safetensors_header(build.write(tmp_path / "model.safetensors", data))


def entry(dtype: object = "F32", shape: object = (2, 2), offsets: object = (0, 16), size: int = 16) -> bytes:
    header = {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    return build.with_header(json.dumps(header).encode(), bytes(size))


def pair(first: list[int], second: list[int], size: int) -> bytes:
    header = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": span}
        for name, span in zip("ab", (first, second), strict=True)
    }
    return build.with_header(json.dumps(header).encode(), bytes(size))


def twice() -> bytes:
    """The same name for two tensors."""
    one, two = (f'"w": {{"dtype": "F32", "shape": [4], "data_offsets": [{at}, {at + 16}]}}' for at in (0, 16))
    return build.with_header(f"{{{one}, {two}}}".encode(), bytes(32))


def test_names_shapes_dtypes_and_places(tmp_path: Path) -> None:
    data = build.safetensors(TENSORS)
    header = header_of(tmp_path, data)
    assert {name: (info.dtype, info.shape, info.num_bytes) for name, info in header.items()} == {
        "a.weight": ("F32", (2, 3), 24),
        "b": ("I8", (5,), 5),
    }
    place = header["a.weight"].offset
    assert np.array_equal(np.frombuffer(data[place : place + 24], dtype=np.float32), np.ones(6, dtype=np.float32))


def test_the_library_reads_the_same(tmp_path: Path) -> None:
    numpy_api = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    numpy_api.save_file(TENSORS, path)
    assert {name: info.shape for name, info in read_safetensors_header(path).items()} == {"a.weight": (2, 3), "b": (5,)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "claims 0 bytes, the file has 0"),
        (struct.pack("<Q", 1 << 60), f"claims {1 << 60} bytes"),
        (build.with_header(b"{x"), "JSON that cannot be read"),
        (build.with_header(b"[" * 100_000), "JSON that cannot be read"),
        (build.with_header(b"[1]"), "JSON list, not an object"),
        (build.with_header(b'{"w": 3}'), "entry of tensor 'w' is malformed"),
        (entry(dtype=7), "malformed"),
        (entry(shape=[2.5]), "malformed"),
        (entry(shape=[-1, -4]), "malformed"),
        (entry(offsets=[0]), "malformed"),
        (entry(shape=[1] * 65), "malformed"),
        (entry(shape=[(1 << 63) - 1] * 20), "needs [0-9]+ bytes, its offsets span 16"),
        (entry(dtype="F99"), "unknown dtype 'F99'"),
        (entry(shape=[2, 3]), "needs 24 bytes, its offsets span 16"),
        (entry(shape=[1 << 40, 1 << 40]), "its offsets span 16"),
        (entry(offsets=[16, 0]), "its offsets span -16"),
        (entry(dtype="F4", shape=[3], offsets=[0, 1]), "needs 1.5 bytes"),
        (entry(size=8), "it is truncated"),
        (entry(size=20), "4 bytes behind tensor 'w' belong to no tensor"),
        (entry(offsets=[4, 20], size=20), "'w' begins at byte [0-9]+ and leaves a gap behind the header"),
        (pair([0, 16], [8, 24], 24), "'b' begins at byte [0-9]+ and overlaps tensor 'a'"),
        (twice(), "'w' begins at byte [0-9]+ and leaves a gap behind the header"),
    ],
)
def test_hostile_headers_are_refused_with_the_fact(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        header_of(tmp_path, data)
    assert "model.safetensors" in str(caught.value)
    assert caught.value.remedy


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_safetensors_header(tmp_path / "none.safetensors")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_safetensors_index(tmp_path / "none.json")


def index_of(tmp_path: Path, value: object) -> dict[str, str]:
    return read_safetensors_index(build.write(tmp_path / "index.json", json.dumps(value).encode()))


def test_an_index_maps_tensors_to_files(tmp_path: Path) -> None:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "sub/x.safetensors"}
    assert index_of(tmp_path, {"metadata": {}, "weight_map": weight_map}) == weight_map


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "..\\x", "C:x", "a\0b", ""])
def test_an_index_cannot_lead_outside_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="outside its folder"):
        index_of(tmp_path, {"weight_map": {"a": name}})


@pytest.mark.parametrize("value", [[], {}, {"weight_map": ["a"]}, {"weight_map": {"a": 3}}])
def test_a_malformed_index_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelFileError):
        index_of(tmp_path, value)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_mutated_files_give_only_clean_errors(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    data = bytearray(build.safetensors(TENSORS))
    for at, patch in edits:
        at %= len(data)
        data[at : at + len(patch)] = patch
    with contextlib.suppress(ModelFileError):
        header_of(tmp_path_factory.getbasetemp(), bytes(data))


@pytest.mark.parametrize(
    ("value", "total"),
    [
        ({"metadata": {"total_size": 12}}, 12),
        ({"metadata": {"total_size": 12.0}}, 12),
        ({"metadata": {"total_size": "12"}}, None),
        ({"metadata": {"total_size": True}}, None),
        ({"metadata": {"total_size": -1}}, None),
        ({"metadata": []}, None),
        ({}, None),
    ],
)
def test_an_index_may_tell_the_total(tmp_path: Path, value: object, total: int | None) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(value))
    assert read_safetensors_total(path) == total


def test_a_total_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_safetensors_total(tmp_path / "absent.json")
