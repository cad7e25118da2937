"""Which kernels a CPU gets, and that they are compiled once per machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from octavo.attention import numba_kernels
from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32
from octavo.attention.numba_kernels import KernelTable, row_element_of, source_digest, vector_paths


def test_every_cpu_has_a_path_and_the_last_one_asks_for_nothing() -> None:
    *others, plain = vector_paths()
    assert (plain.name, plain.lanes, plain.has_half, plain.has_dot) == ("plain", 4, False, False)
    assert [path.lanes for path in (*others, plain)] == sorted((path.lanes for path in vector_paths()), reverse=True)
    assert len({path.name for path in vector_paths()}) == len(vector_paths())


@pytest.mark.parametrize(
    ("features", "names"),
    [
        ({}, ["plain"]),
        ({"avx2", "fma"}, ["plain"]),
        ({"avx2", "fma", "f16c"}, ["avx2", "plain"]),
        ({"avx2", "fma", "f16c", "avx512f"}, ["avx2", "plain"]),
        ({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"}, ["avx512", "avx2", "plain"]),
    ],
)
def test_paths_follow_the_cpus_features(features: set[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    has = {**dict.fromkeys(features, True), "sse4a": False}
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: has)
    assert [path.name for path in vector_paths.__wrapped__()] == names


def test_rows_stay_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    for path in vector_paths():
        expected = BFLOAT16 if path.has_dot else FLOAT32
        assert row_element_of(path, BFLOAT16, BFLOAT16) == expected
        assert row_element_of(path, FLOAT32, BFLOAT16) == FLOAT32
        assert row_element_of(path, FLOAT16, FLOAT16) == FLOAT32


def test_the_digest_changes_with_any_kernel_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(numba_kernels.__file__).parent
    names = [file.name for file in folder.glob("numba_*.py")]
    assert len(names) > 5
    for name in names:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr(numba_kernels, "__file__", str(tmp_path / "numba_kernels.py"))
    digests = {source_digest.__wrapped__()}
    assert digests == {source_digest()}
    for name in names:
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        digests.add(source_digest.__wrapped__())
    assert len(digests) == len(names) + 1


@pytest.mark.slow
def test_kernels_are_compiled_once_and_kept(tmp_path: Path) -> None:
    program = (
        "import sys, numba.core.event as event, octavo.attention.numba_kernels as kernels\n"
        "from pathlib import Path\n"
        "with event.install_recorder('numba:compile') as compilations:\n"
        "    kernels.kernels_of(kernels.vector_paths()[-1], Path(sys.argv[1])).write(kernels.BFLOAT16)\n"
        "print(len(compilations.buffer) > 0)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs == ["True\n", "False\n"]
    assert [folder.name for folder in tmp_path.iterdir()] == [source_digest()]


@pytest.mark.slow
def test_without_a_place_to_keep_them_kernels_last_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert KernelTable(vector_paths()[-1], tmp_path / "file" / "kernels").write(BFLOAT16) != 0
