"""Machine code is kept where that is possible, and its absence stops nobody."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import numba
import numba.core.caching
import pytest
from numba import types

from octavo import compiling
from octavo.compiling import c_function, compiled

_PROGRAM = """
import numba.core.caching as caching, numba.core.event as event, sys
for kind in (caching.CompileResultCacheImpl, caching.CodeLibraryCacheImpl):
    kind._locator_classes = [caching.UserProvidedCacheLocator]  # as where the package cannot be written
with event.install_recorder("numba:compile") as compilations:
    from octavo.worker.row_kernels import argmax
    import numpy as np
    print(argmax(np.array([0, 2, 1], np.float32).view(np.int32), 0x7F800000), len(compilations.buffer) > 0)
"""


def _run(cache: Path) -> str:
    command = [sys.executable, "-c", _PROGRAM]
    environment = {"OCTAVO_CACHE": str(cache), "PYTHONPATH": ":".join(sys.path), "HOME": "/dev/null/no-home"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.slow
def test_a_package_that_cannot_be_written_keeps_its_kernels_in_the_cache_folder(tmp_path: Path) -> None:
    assert [_run(tmp_path) for _ in range(2)] == ["1 True\n", "1 False\n"]
    assert list((tmp_path / "kernels").rglob("*.nbi"))


@pytest.mark.slow
def test_where_nothing_can_be_written_kernels_last_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [_run(tmp_path / "file") for _ in range(2)] == ["1 True\n", "1 True\n"]


@pytest.mark.slow
def test_a_c_function_is_kept_in_the_first_folder_that_can_be_written(tmp_path: Path) -> None:
    def nothing(number: int) -> None:
        pass

    (tmp_path / "file").touch()
    before = numba.config.CACHE_DIR
    made = c_function(
        types.void(types.int64), nothing, [tmp_path / "file" / "sub", tmp_path / "first", tmp_path / "no"]
    )
    assert made.address
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "first"]
    assert list((tmp_path / "first").rglob("*.nbi"))
    assert c_function(types.void(types.int64), nothing, [tmp_path / "file" / "sub"]).address
    assert before == numba.config.CACHE_DIR


def test_another_error_of_numba_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(numba, "njit", broken)
    with pytest.raises(RuntimeError, match="something else"):
        compiled()(broken)


_TOGETHER = """
import sys
from pathlib import Path
from numba import types
from octavo.compiling import c_function

sys.path.insert(0, sys.argv[1])
from shared_kernel import kernel
print("ready", flush=True)
sys.stdin.readline()
made = c_function(types.void(types.CPointer(types.float64)), kernel, [Path(sys.argv[2])])
print(made.cache_hits)
"""


@pytest.mark.slow
def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    lines = "\n".join(f"    place[0] = place[0] * {number}.5 + place[{number}]" for number in range(60))
    (tmp_path / "shared_kernel.py").write_text(f"def kernel(place):\n{lines}\n", "utf-8")
    command = [sys.executable, "-c", _TOGETHER, str(tmp_path), str(tmp_path / "kept")]
    together = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(3)
    ]
    for process in together:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in together:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    hits = sorted(int(process.communicate(timeout=120)[0]) for process in together)
    assert hits == [0, 1, 1]


def test_a_process_that_was_stopped_while_it_compiled_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(_number: int) -> None:
        pass

    monkeypatch.setattr(compiling, "PATIENCE_S", 0.2)
    with (tmp_path / "compiling.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert c_function(types.void(types.int64), nothing, [tmp_path]).address
    assert [record.levelname for record in caplog.records] == ["WARNING"], "somebody waits, and is told for what"
    assert str(tmp_path) in caplog.text
    caplog.clear()
    assert c_function(types.void(types.int64), nothing, [tmp_path]).cache_hits == 1
    assert not caplog.records
