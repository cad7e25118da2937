"""Products with weights in blocks against float64, on every path that this CPU can take."""

from __future__ import annotations

import itertools

import pytest
import torch

from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.modules.block_kernels import BLOCK_JOB, block_kernel
from octavo.models.modules.row_kernels import TEAM
from octavo.models.modules.weights import in_blocks

PATHS = [path for path in vector_paths() if path.name in ("plain", "avx2", "avx512")]
PATHS = [*PATHS, *(path for path in vector_paths()[:1] if path not in PATHS)]

pytestmark = pytest.mark.slow  # compiles kernels once per path


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_products_are_those_of_float64(path: VectorPath) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((16, 2), (48, 40), (70, 64), (130, 100))
    for num_rows, (num_outputs, num_inputs), block_outputs, has_bias in itertools.product(
        (1, 2, 3, 5, 6, 7, 13, 41), shapes, (16, 32, 48, 64), (False, True)
    ):
        rows = torch.randn(num_rows, num_inputs + 6, generator=generator).bfloat16()[:, :num_inputs]
        weight = torch.randn(num_outputs, num_inputs, generator=generator).bfloat16()
        bias = torch.randn(num_outputs, generator=generator).bfloat16() if has_bias else None
        blocks = in_blocks(weight, block_outputs, 32)
        around = torch.full((num_rows + 1, num_outputs + 3), 7.0, dtype=torch.bfloat16)
        record = Record(
            BLOCK_JOB,
            {
                "rows": rows.data_ptr(),
                "row_bytes": rows.stride(0) * 2,
                "num_rows": num_rows,
                "out": around.data_ptr(),
                "out_bytes": around.stride(0) * 2,
                "weight": blocks.data_ptr(),
                "block_outputs": block_outputs,
                "block_bytes": blocks[0].nbytes,
                "bias": 0 if bias is None else bias.data_ptr(),
                "num_outputs": num_outputs,
                "num_inputs": num_inputs,
                "unit_rows": 20,
                "next_weight": blocks.data_ptr(),
            },
        )
        TEAM.run(block_kernel(path, block_outputs), record.address, 2)
        assert bool((around[:, num_outputs:] == 7).all()) and bool((around[num_rows:] == 7).all())
        found = around[:num_rows, :num_outputs].double()
        expected = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
        magnitude = rows.double().abs() @ weight.double().abs().T + 1
        close = (found - expected).abs() <= 1e-6 * magnitude + 4e-3 * expected.abs()
        assert bool(close.all()), (num_rows, num_outputs, num_inputs, block_outputs)
