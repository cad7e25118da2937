"""Products of many rows of bfloat16 against float64, on every path that this CPU can take."""

from __future__ import annotations

import pytest
import torch

from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.models.modules.linear_kernels import FEW_ROWS
from octavo.models.modules.wide_kernels import REST_ROWS, tile_rows
from tests.models.modules.test_linear_kernels import PATHS, check_products, check_rows_alone, multiply

pytestmark = pytest.mark.slow  # compiles kernels once per path


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_products_are_those_of_float64(path: VectorPath) -> None:
    check_products(path, torch.bfloat16, (FEW_ROWS + 1, 24, 30, 61))


def test_a_row_does_not_depend_on_its_neighbours_or_on_threads() -> None:
    check_rows_alone(torch.bfloat16, FEW_ROWS + 1, 3 * FEW_ROWS)


@pytest.mark.parametrize("num_rows", [FEW_ROWS, 2 * FEW_ROWS])
def test_a_number_that_is_none_stays_in_its_row_and_output(num_rows: int) -> None:
    rows, weight = torch.ones(num_rows, 33).bfloat16(), torch.ones(40, 33).bfloat16()
    rows[0, 32] = torch.nan
    weight[39, 0] = torch.inf
    found = multiply(vector_paths()[0], rows, weight, None)
    assert bool(found[0].isnan().all()) and bool(found[1:, :39].eq(33).all()) and bool(found[1:, 39].isinf().all())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_block_is_whole_tiles(path: VectorPath) -> None:
    assert 12 % tile_rows(path) == 0 and tile_rows(path) % REST_ROWS == 0
