"""Blocks of scores and of weighted sums against float64, at the widths of every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from numba import cfunc, types

from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_tiles import TILE_TOKENS
from octavo.attention.numba_wide_tiles import (
    PANEL_VECTORS,
    WIDE_ROWS,
    score_block,
    score_rows_of,
    value_block,
    value_rows_of,
)

PATHS = {path.lanes: path for path in (VectorPath("sixteen", 16), *vector_paths())}
"""LLVM makes sixteen lanes of whatever the CPU has."""

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("path", PATHS.values(), ids=lambda path: str(path.lanes))]


def _kernel(number_of_arguments: int) -> Any:
    return cfunc(types.void(*[types.int64] * number_of_arguments))


def _numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_score_is_the_product_of_its_row_and_key(path: VectorPath) -> None:
    @_kernel(7)  # type: ignore[untyped-decorator]
    def score(rows: int, row_bytes: int, keys: int, key_bytes: int, steps: int, out: int, out_bytes: int) -> None:
        score_block(path, rows, row_bytes, keys, key_bytes, steps, out, out_bytes)

    num_rows, size = score_rows_of(path), 3 * path.lanes
    rows, keys = _numbers(1, num_rows, size + 5), _numbers(2, TILE_TOKENS, size + 7)
    out = torch.full((num_rows + 1, TILE_TOKENS + 1), torch.nan)
    strides = [4 * tensor.stride(0) for tensor in (rows, keys, out)]
    score.ctypes(rows.data_ptr(), strides[0], keys.data_ptr(), strides[1], 3, out.data_ptr(), strides[2])
    expected = rows[:, :size].double() @ keys[:, :size].double().T
    assert torch.allclose(out[:num_rows, :TILE_TOKENS].double(), expected, atol=1e-5)
    assert bool(out[num_rows].isnan().all()) and bool(out[:, TILE_TOKENS].isnan().all())


def test_a_weighted_sum_is_added_to_what_is_kept(path: VectorPath) -> None:
    @_kernel(8)  # type: ignore[untyped-decorator]
    def value(a: int, a_bytes: int, keep: int, take: int, panel: int, count: int, out: int, out_bytes: int) -> None:
        value_block(path, a, a_bytes, keep, take, panel, count, out, out_bytes)

    num_rows, columns, count = value_rows_of(path), PANEL_VECTORS * path.lanes, 11
    weights, panel = _numbers(1, num_rows, count + 3), _numbers(2, count, columns)
    keep, take = _numbers(3, num_rows), _numbers(4, num_rows)
    before = _numbers(5, num_rows + 1, columns + 1)
    out = before.clone()
    value.ctypes(
        *(weights.data_ptr(), 4 * weights.stride(0), keep.data_ptr(), take.data_ptr()),
        *(panel.data_ptr(), count, out.data_ptr(), 4 * out.stride(0)),
    )
    sums = weights[:, :count].double() @ panel.double()
    expected = before[:num_rows, :columns].double() * keep[:, None] + sums * take[:, None]
    assert torch.allclose(out[:num_rows, :columns].double(), expected, atol=1e-5)
    assert torch.equal(out[num_rows], before[num_rows]) and torch.equal(out[:, columns], before[:, columns])


def test_rows_are_rounded_up_to_whole_blocks(path: VectorPath) -> None:
    assert WIDE_ROWS % score_rows_of(path) == 0 and WIDE_ROWS % value_rows_of(path) == 0
