"""Products of few rows against float64, on every path that this CPU can take."""

from __future__ import annotations

import itertools

import pytest
import torch

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.modules.linear_kernels import LINEAR_JOB, linear_kernel
from octavo.models.modules.row_kernels import TEAM

PATHS = [path for path in vector_paths() if path.name in ("plain", "avx2", "avx512")]
PATHS = [*PATHS, *(path for path in vector_paths()[:1] if path not in PATHS)]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}

pytestmark = pytest.mark.slow  # compiles kernels once per path


def multiply(
    path: VectorPath, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, num_threads: int = 2
) -> torch.Tensor:
    """rows @ weight.T + bias by the kernel, with nothing written beside the result."""
    num_rows, num_outputs, width = len(rows), len(weight), rows.element_size()
    around = torch.full((num_rows + 1, num_outputs + 3), 7.0, dtype=rows.dtype)
    record = Record(
        LINEAR_JOB,
        {
            "rows": rows.data_ptr(),
            "row_bytes": rows.stride(0) * width,
            "num_rows": num_rows,
            "out": around.data_ptr(),
            "out_bytes": around.stride(0) * width,
            "weight": weight.data_ptr(),
            "weight_bytes": weight.stride(0) * width,
            "bias": 0 if bias is None else bias.data_ptr(),
            "num_outputs": num_outputs,
            "num_inputs": weight.shape[1],
            "unit_outputs": 8,
            "block_rows": 24,
        },
    )
    TEAM.run(linear_kernel(path, element_of(rows.dtype)), record.address, num_threads)
    assert bool((around[:, num_outputs:] == 7).all()) and bool((around[num_rows:] == 7).all())
    return around[:num_rows, :num_outputs]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_products_are_those_of_float64(path: VectorPath, dtype: torch.dtype) -> None:
    check_products(path, dtype, (1, 2, 3, 4, 5, 9))


def check_products(path: VectorPath, dtype: torch.dtype, counts: tuple[int, ...]) -> None:
    """Products of so many rows with weights of several shapes."""
    generator = torch.Generator().manual_seed(0)
    sizes = itertools.product(counts, ((1, 1), (3, 7), (4, 16), (30, 33), (41, 100), (64, 576)), (False, True))
    for num_rows, (num_outputs, num_inputs), has_bias in sizes:
        # Neither rows nor weights need lie end to end.
        rows = torch.randn(num_rows, num_inputs + 5, generator=generator).to(dtype)[:, :num_inputs]
        weight = torch.randn(num_outputs, num_inputs + 2, generator=generator).to(dtype)[:, :num_inputs]
        bias = torch.randn(num_outputs, generator=generator).to(dtype) if has_bias else None
        found = multiply(path, rows, weight, bias).double()
        expected = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
        magnitude = rows.double().abs() @ weight.double().abs().T + 1
        rounding = expected.abs() * TOLERANCE[dtype]
        assert bool(((found - expected).abs() <= 1e-6 * magnitude + rounding).all()), (
            num_rows,
            num_outputs,
            num_inputs,
        )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_does_not_depend_on_its_neighbours_or_on_threads(dtype: torch.dtype) -> None:
    check_rows_alone(dtype, 1, 9)


def check_rows_alone(dtype: torch.dtype, few: int, many: int) -> None:
    """`few` rows have the same results alone, on one thread, as among `many`."""
    generator = torch.Generator().manual_seed(1)
    rows, weight = (torch.randn(size, 131, generator=generator).to(dtype) for size in (many, 77))
    path = vector_paths()[0]
    together = multiply(path, rows, weight, None)
    for row in range(many - few + 1):
        alone = multiply(path, rows[row : row + few], weight, None, num_threads=1)
        assert torch.equal(alone, together[row : row + few])
