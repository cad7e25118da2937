"""Conversions to the bit, and powers of two to the last bit but one, on every width of vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from numba import cfunc, types

from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32, Element, VectorPath
from octavo.attention.numba_rows import copy_row
from octavo.attention.numba_vectors import exp2, load, store

PATHS = [VectorPath("wide", 16, has_half=True), VectorPath("narrow", 4)]
DTYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}
_SIGNATURE = types.void(types.int64, types.int64, types.int64)


def _copier(path: VectorPath, source: Element, target: Element) -> Any:
    @cfunc(_SIGNATURE)  # type: ignore[untyped-decorator]
    def copy(address: int, to: int, size: int) -> None:
        copy_row(path, source, address, target, to, size)

    return copy


def _numbers(element: Element) -> torch.Tensor:
    """Every number of 16 bits; of float32 those, the middles between neighbours, and any bits."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    if element != FLOAT32:
        return every.view(DTYPES[element])
    random = torch.Generator().manual_seed(0)
    halves, brains = every.view(torch.float16).float(), every.view(torch.bfloat16).float()
    any_bits = torch.randint(-(2**31), 2**31, (200_003,), generator=random).to(torch.int32).view(torch.float32)
    middles = [(numbers + numbers.roll(1)) / 2 for numbers in (halves, brains)]
    return torch.cat([halves, brains, *middles, any_bits])


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@pytest.mark.parametrize("source", DTYPES, ids=lambda element: element.name)
@pytest.mark.parametrize("target", DTYPES, ids=lambda element: element.name)
def test_rows_are_converted_as_torch_does(path: VectorPath, source: Element, target: Element) -> None:
    numbers = _numbers(source)
    out = torch.full((numbers.numel() + 20,), 7.0, dtype=DTYPES[target])
    _copier(path, source, target).ctypes(numbers.data_ptr(), out.data_ptr(), numbers.numel())
    expected = numbers.to(DTYPES[target])
    got = out[: numbers.numel()]
    assert bool(((got == expected) | (got.isnan() & expected.isnan())).all())
    assert bool((out[numbers.numel() :] == 7.0).all()), "wrote behind the row"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_powers_of_two(path: VectorPath) -> None:
    @cfunc(_SIGNATURE)  # type: ignore[untyped-decorator]
    def powers(address: int, to: int, size: int) -> None:
        for at in range(0, 4 * size, 4 * path.lanes):
            store(path, FLOAT32, to + at, exp2(load(path, FLOAT32, address + at)))

    random = torch.Generator().manual_seed(0)
    x = torch.cat([torch.empty(100_000).uniform_(-126, 127, generator=random), torch.arange(-126.0, 122.0)])
    borders = torch.tensor([0.0, -0.0, -126.0, -126.001, -1e30, -torch.inf, 127.0, 5e8])
    x = torch.cat([x[: x.numel() // 16 * 16 - 8], borders])
    out = torch.empty_like(x)
    powers.ctypes(x.data_ptr(), out.data_ptr(), x.numel())
    exact = torch.exp2(x.double())
    in_range = (x >= -126) & (x <= 127)
    assert ((out.double() - exact) / exact)[in_range].abs().max() < 1.2e-7
    assert out[-8:].tolist() == [1.0, 1.0, 2.0**-126, 0.0, 0.0, 0.0, 2.0**127, 2.0**127]
