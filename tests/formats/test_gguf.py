from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.formats.gguf import KEPT_BYTES, GGUFFile
from tests.formats import build

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.rope.freq_base": 10000.5,
    "llama.tied": True,
    "tokens": ["a", "bé", "", "▁the"],
    "scores": [0.5, -1.0, 2.25],
    "heads": [4, 2, 1],
    "empty": [],
}
WEIGHT = np.arange(12, dtype=np.float32)
TENSORS = {
    "one": ("F32", (3, 4), WEIGHT.tobytes()),
    "two": ("Q8_0", (2, 64), bytes(range(136))),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build.write(tmp_path / "model.gguf", build.gguf(METADATA, TENSORS))


def test_metadata_of_every_kind(path: Path) -> None:
    file = GGUFFile(path)
    assert file.get("general.architecture", str) == "llama"
    assert file.get("llama.block_count", int) == 3
    assert file.get("llama.block_count", float) == 3.0
    assert file.get("llama.rope.freq_base", float) == 10000.5
    assert file.get("llama.tied", bool) is True
    assert file.get("absent", int, 7) == 7
    for key in ("tokens", "scores", "heads", "empty"):
        array = file.array(key)
        assert array is not None
        assert array.tolist() == METADATA[key]
        assert len(array) == len(METADATA[key])  # type: ignore[arg-type]
    assert file.array("absent") is None


def test_tensors_are_views_of_the_file(path: Path) -> None:
    file = GGUFFile(path)
    assert file.tensors["one"].shape == (3, 4)
    assert file.tensors["two"].type == "Q8_0"
    assert np.array_equal(np.asarray(file.raw("one")).view(np.float32), WEIGHT)
    assert bytes(file.raw("two")) == bytes(range(136))
    assert file.raw("one").readonly
    assert file.tensor_bytes == 48 + 136


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("absent", int, "has no absent"),
        ("general.architecture", int, "'llama', not a int"),
        ("llama.tied", int, "True, not a int"),
        ("tokens", str, "an array, not a str"),
    ],
)
def test_values_of_another_kind_are_refused(path: Path, key: str, kind: type[int] | type[str], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        GGUFFile(path).get(key, kind)


def test_arrays_of_another_kind_are_refused(path: Path) -> None:
    file = GGUFFile(path)
    tokens, heads = file.array("tokens"), file.array("heads")
    assert tokens is not None
    assert heads is not None
    with pytest.raises(ModelFileError, match="strings where numbers belong"):
        tokens.numbers()
    with pytest.raises(ModelFileError, match="numbers where strings belong"):
        heads.strings()
    with pytest.raises(ModelFileError, match="block_count is 3, not an array"):
        file.array("llama.block_count")
    with pytest.raises(ModelFileError, match="no tensor 'three'"):
        file.raw("three")


HUGE = 1 << 62
PREAMBLE = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)


def _head(num_tensors: int, num_entries: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries)


def _tensor(shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return _head(1, 0) + build.tensor_header("w", shape, type_id, offset) + bytes(256)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "ends too early"),
        (b"PK\3\4" + bytes(40), "instead of b'GGUF'"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (_head(0, HUGE) + bytes(40), f"claims {HUGE} metadata entries"),
        (_head(HUGE, 0) + bytes(40), f"claims {HUGE} tensors"),
        (_head(0, 1) + struct.pack("<Q", HUGE) + bytes(40), f"length of {HUGE} bytes"),
        (_head(0, 1) + struct.pack("<Q", 1 << 20) + bytes(40), "ends too early"),
        (_head(0, 1) + build.string(b"\xff") + bytes(40), "not UTF-8"),
        (_head(0, 1) + build.string("k") + struct.pack("<I", 99) + bytes(40), "unknown type 99"),
        (_head(0, 1) + build.string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(40), "elements of type 9"),
        (_head(0, 1) + build.string("k") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(40), f"claims {HUGE} strings"),
        (_head(0, 1) + build.string("k") + struct.pack("<IIQ", 9, 5, HUGE) + bytes(40), "ends too early"),
        (_head(0, 1) + build.string("k") + struct.pack("<IIQQ", 9, 8, 2, HUGE) + bytes(40), "ends inside the array"),
        (_head(0, 2) + 2 * (build.string("k") + build.value(1)), "'k' appears twice"),
        (_head(0, 1) + build.string("general.alignment") + build.value(0), "alignment is 0"),
        (_head(1, 0) + build.string("w") + struct.pack("<I", 1 << 31) + bytes(40), "claims 2147483648 dimensions"),
        (_tensor((4,), 99, 0), "unknown type 99"),
        (_tensor((33,), 8, 0), "multiple of 32"),
        (_tensor((0, 32), 8, 0), "no dimension may be 0"),
        (_tensor((), 0, 0), "no dimension may be 0"),
        (_tensor((4,), 0, HUGE), "truncated"),
        (_tensor((HUGE, HUGE), 0, 0), "truncated"),
        (
            _head(2, 0) + 2 * build.tensor_header("w", (4,), 0, 0) + bytes(256),
            "tensor 'w' appears twice",
        ),
    ],
)
def test_hostile_files_are_refused_with_the_fact(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        GGUFFile(build.write(tmp_path / "bad.gguf", data))
    assert caught.value.remedy
    assert "bad.gguf" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    data = build.gguf(METADATA, TENSORS)
    used = len(data) - (-136 % 32)
    for length in range(1, used, 7):
        with pytest.raises(ModelFileError):
            GGUFFile(build.write(tmp_path / "short.gguf", data[:length]))
    GGUFFile(build.write(tmp_path / "whole.gguf", data[:used]))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
)
def test_mutated_files_give_only_clean_errors(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    data = bytearray(build.gguf(METADATA, TENSORS))
    for at, patch in edits:
        at %= len(data)
        data[at : at + len(patch)] = patch
    path = build.write(tmp_path_factory.getbasetemp() / "mutated.gguf", bytes(data))
    try:
        file = GGUFFile(path)
        for item in file.metadata.values():
            if hasattr(item, "tolist"):
                item.tolist()
        for name in file.tensors:
            np.asarray(file.raw(name)).sum()
    except ModelFileError:
        pass


def _file_memory() -> int:
    """Bytes of files that count as this process's memory."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile:"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_what_was_read_of_tensors_does_not_stay_this_processs_memory(tmp_path: Path) -> None:
    num_bytes = 16 << 20
    tensors = {f"t{i}": ("F32", (num_bytes // 4,), bytes([i + 1]) * num_bytes) for i in range(6)}
    file = GGUFFile(build.write(tmp_path / "model.gguf", build.gguf({}, tensors)))
    before = _file_memory()
    views = [np.asarray(file.raw(f"t{i}")) for i in range(6)]
    assert [int(view.min()) for view in views] == [1, 2, 3, 4, 5, 6]
    assert _file_memory() > before + 5 * num_bytes  # views that are read later: nobody can know
    file.release_pages()
    most = 0
    for i in range(6):
        assert max(file.raw(f"t{i}")) == i + 1
        most = max(most, _file_memory() - before)
    assert most <= KEPT_BYTES + 2 * num_bytes
    assert [int(view.max()) for view in views] == [1, 2, 3, 4, 5, 6]
