"""Prefill over widened pages, at the widths of every path: against the reference, and to the bit as decode does it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_job import SHORT_TILES, TILE_ROWS
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_wide_tiles import WIDE_ROWS
from tests.attention.cases import Case, Step, check

PATHS = {path.lanes: path for path in (VectorPath("sixteen", 16), *vector_paths()) if not path.has_dot}
"""LLVM makes sixteen lanes of whatever the CPU has."""

pytestmark = pytest.mark.slow  # compiles kernels once per path

CASES = [
    Case(requests=((290, 200), (70, 70), (3, 3))),
    Case(requests=((290, 200),), num_kv_heads=1, group_size=4, head_size=256, value_size=256, window=100),
    Case(requests=((130, 130),), head_size=33, value_size=7),
    Case(requests=((2300, 300),), head_size=72, value_size=40, has_slopes=True, soft_cap=20.0),
]


@cache
def backend_of(lanes: int) -> NumbaCPU:
    return NumbaCPU(num_threads=2, path=PATHS[lanes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lanes", PATHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.requests))
def test_a_prefill_agrees_with_the_reference(lanes: int, case: Case, dtype: torch.dtype) -> None:
    check(backend_of(lanes), Step(Case(**{**vars(case), "dtype": dtype, "cache_dtype": dtype})))


@pytest.mark.parametrize("lanes", PATHS)
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: str(case.requests))
def test_its_last_token_is_what_decode_makes_of_it(lanes: int, case: Case) -> None:
    """To the bit, in bfloat16 too: both sum in one order."""
    length = case.requests[0][0]
    many = Step(Case(**{**vars(case), "requests": ((length, 200),), "dtype": torch.bfloat16}))
    expected, memory = many.run(backend_of(lanes))
    metadata = many.metadata
    layer = many.layer(backend_of(lanes))
    layer.kv_cache = many.view(memory)
    assert layer.group is not None
    layer.group.metadata = type(metadata)(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=metadata.seq_lens,
        block_table=metadata.block_table,
        slot_mapping=metadata.slot_mapping[199:],
        num_requests=1,
        num_tokens=1,
        max_query_len=1,
        max_seq_len=length,
    )
    got = layer.forward(many.query[199:], many.key[199:], many.value[199:])
    assert torch.equal(got, expected[199:])


def test_a_tile_is_whole_blocks_of_rows() -> None:
    assert TILE_ROWS % (SHORT_TILES * WIDE_ROWS) == 0
