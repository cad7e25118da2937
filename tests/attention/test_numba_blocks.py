"""Packing, to the bit, and products of packed blocks, on tiles where the CPU has them and on pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba import cfunc, types

from octavo.attention.numba_blocks import (
    BLOCK,
    COLUMNS,
    PAIR_BYTES,
    begin_tiles,
    end_tiles,
    pack_keys,
    pack_pair,
    product_block,
)
from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths

PATHS = [path for path in vector_paths() if path.has_dot]
if PATHS and PATHS[0].has_tiles:
    PATHS = [PATHS[0], replace(PATHS[0], name="pairs", has_tiles=False)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PATHS, reason="this CPU has no products of bfloat16"),
    pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name),
]


def _kernel(number_of_arguments: int) -> Any:
    return cfunc(types.void(*[types.int64] * number_of_arguments))


def _rows(num_rows: int, size: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def _packed_keys(path: VectorPath, keys: torch.Tensor) -> torch.Tensor:
    """Every 16 keys as `[steps * 16 pairs][16 columns][2]`; NaN behind, so that a missing zero would be seen."""

    @_kernel(4)  # type: ignore[untyped-decorator]
    def pack(listed: int, offset: int, size: int, to: int) -> None:
        pack_keys(path, listed, offset, size, to)

    pairs = -(-keys.shape[1] // BLOCK) * BLOCK // 2
    packed = torch.full((keys.shape[0] // COLUMNS, pairs, COLUMNS, 2), torch.nan, dtype=torch.bfloat16)
    for number, columns in enumerate(torch.split(keys, COLUMNS)):
        listed = np.array([row.data_ptr() - 6 for row in columns], np.int64)
        pack.ctypes(listed.ctypes.data, 6, keys.shape[1], packed[number].data_ptr())
    return packed


@pytest.mark.parametrize("size", [8, 33, 64, 80])
def test_keys_are_packed_as_pairs_of_columns(path: VectorPath, size: int) -> None:
    keys = _rows(2 * COLUMNS, size, seed=size)
    packed = _packed_keys(path, keys)
    filled = torch.nn.functional.pad(keys, (0, 2 * packed.shape[1] - size))
    assert torch.equal(packed, filled.view(2, COLUMNS, -1, 2).transpose(1, 2))


@pytest.mark.parametrize("size", [8, 33, 64])
def test_two_values_are_packed_side_by_side(path: VectorPath, size: int) -> None:
    @_kernel(5)  # type: ignore[untyped-decorator]
    def pack(first: int, second: int, length: int, to: int, column_bytes: int) -> None:
        pack_pair(path, first, second, length, to, column_bytes)

    values, groups = _rows(2, size, seed=size), -(-size // COLUMNS)
    packed = torch.full((groups, 3, COLUMNS, 2), torch.nan, dtype=torch.bfloat16)
    pack.ctypes(values[0].data_ptr(), values[1].data_ptr(), size, packed.data_ptr(), 3 * PAIR_BYTES)
    filled = torch.nn.functional.pad(values, (0, groups * COLUMNS - size))
    assert torch.equal(packed[:, 0].reshape(-1, 2), filled.T)
    assert packed[:, 1:].isnan().all()


@pytest.mark.parametrize("size", [32, 40, 128])
@pytest.mark.parametrize("keeps", [0, 1])
def test_a_block_is_multiplied(path: VectorPath, size: int, keeps: int) -> None:
    @_kernel(7)  # type: ignore[untyped-decorator]
    def product(memory: int, a: int, b: int, num_steps: int, c: int, c_bytes: int, adds: int) -> None:
        begin_tiles(path, memory)
        product_block(path, a, num_steps * 64, b, num_steps * 16 * PAIR_BYTES, num_steps, c, c_bytes, adds)
        end_tiles(path)

    rows, keys = _rows(BLOCK, size, seed=1), _rows(BLOCK, size, seed=2)
    packed = _packed_keys(path, keys)
    filled = torch.nn.functional.pad(rows, (0, 2 * packed.shape[1] - size)).contiguous()
    out = torch.full((BLOCK, BLOCK + 8), 3.0)
    memory = torch.zeros(64, dtype=torch.uint8)
    product.ctypes(
        memory.data_ptr(), filled.data_ptr(), packed.data_ptr(), packed.shape[1] // 16, out.data_ptr(), 4 * 40, keeps
    )
    expected = rows.double() @ keys.double().T + 3.0 * keeps
    assert torch.allclose(out[:, :BLOCK].double(), expected, atol=1e-4)
    assert (out[:, BLOCK:] == 3.0).all()
