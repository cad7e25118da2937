"""In which dtype a CPU computes best: told without torch, before it is there."""

from __future__ import annotations

from pathlib import Path

_BFLOAT16_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16", "avx512dq", "avx2"))
"""Flags in `/proc/cpuinfo` of CPUs that are at their fastest in bfloat16: with products of it (x86, x86, ARM), or with
AVX-512 or AVX2 alone, where our kernels widen what they read and reading half the bytes counts for more
(docs/decisions/0026)."""


def fastest_dtype(root: Path = Path("/")) -> str:
    """`bfloat16` where the CPU is fastest in it, else `float32`."""
    return "bfloat16" if _BFLOAT16_FLAGS & cpu_flags(root) else "float32"


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Instruction-set flags of the first CPU in `/proc/cpuinfo`; none where there is no such file."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
