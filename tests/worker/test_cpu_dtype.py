from __future__ import annotations

from pathlib import Path

import pytest

from octavo.worker.cpu_dtype import cpu_flags, fastest_dtype


@pytest.mark.parametrize(
    ("line", "flags", "dtype"),
    [
        ("flags\t\t: fpu avx512_bf16", {"fpu", "avx512_bf16"}, "bfloat16"),
        ("Features\t: fp asimd bf16", {"fp", "asimd", "bf16"}, "bfloat16"),
        ("flags\t\t: fpu avx2", {"fpu", "avx2"}, "bfloat16"),
        ("flags\t\t: fpu avx", {"fpu", "avx"}, "float32"),
    ],
)
def test_flags_tell_the_dtype(line: str, flags: set[str], dtype: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\nflags\t: other\n")
    assert cpu_flags(tmp_path) == flags
    assert fastest_dtype(tmp_path) == dtype


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path) == frozenset()
    assert fastest_dtype(tmp_path) == "float32"
