"""The pass between two parts of a layer against separate operators, on every path that this CPU can take."""

from __future__ import annotations

import itertools

import pytest
import torch

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.modules.norm_kernels import NORM_JOB, norm_kernel
from octavo.models.modules.row_kernels import TEAM

PATHS = [path for path in vector_paths() if path.name in ("plain", "avx2")] + [vector_paths()[0]]

pytestmark = pytest.mark.slow  # compiles kernels once per path


def normed(rows: torch.Tensor, factors: torch.Tensor, epsilon: float, *, rounds: bool) -> torch.Tensor:
    """As transformers' modules compute it, operator by operator."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    if rounds:
        wide = wide.to(rows.dtype).float()
    return (wide * factors).to(rows.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_rows_are_joined_and_normed(path: VectorPath, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    choices = itertools.product((False, True), (False, True), (False, True), (1.0, 0.22), (False, True), (5, 64, 70))
    for has_first, has_last, adds, multiplier, rounds, size in choices:
        rows = (3 * torch.randn(3, size + 4, generator=generator)).to(dtype)[:, :size]
        residual = torch.randn(3, size, generator=generator).to(dtype)
        first, last = (torch.rand(size, generator=generator) + 0.5 for _ in range(2))
        joined, out = residual.clone(), torch.full((3, size), 7.0, dtype=dtype)
        width = rows.element_size()
        record = Record(
            NORM_JOB,
            {
                "rows": rows.data_ptr(),
                "row_bytes": rows.stride(0) * width,
                "num_rows": 3,
                "out": out.data_ptr(),
                "out_bytes": size * width,
                "joined": joined.data_ptr(),
                "joined_bytes": size * width,
                "adds": adds,
                "size": size,
                "first_factors": first.data_ptr() if has_first else 0,
                "last_factors": last.data_ptr() if has_last else 0,
                "first_rounds": rounds,
                "last_rounds": not rounds,
                "first_epsilon": 1e-6,
                "last_epsilon": 1e-5,
                "multiplier": multiplier,
            },
        )
        TEAM.run(norm_kernel(path, element_of(dtype)), record.address, 2)
        expected = normed(rows, first, 1e-6, rounds=rounds) if has_first else rows
        expected = expected * multiplier
        expected = residual + expected if adds else expected
        close(joined, expected)
        close(out, normed(joined, last, 1e-5, rounds=not rounds) if has_last else torch.full_like(out, 7.0))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of float32 sums, which may turn a rounding to bfloat16 around now and then."""
    tolerance = 2e-6 if found.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance / 10)
    assert float((found == expected).float().mean()) > 0.9 or found.dtype == torch.float32
