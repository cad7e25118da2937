"""Codes of every type against the numbers that `dequantize` gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.formats.codes import CODINGS, INT8, GroupCodes, make_codes, read_codes
from octavo.formats.dequantize import dequantize
from octavo.formats.ggml_types import GGML_TYPES

KINDS = {kind.name: kind for kind in GGML_TYPES.values()}
HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""Where float16 numbers lie in a block, unless at its beginning alone."""


def stored_rows(name: str, num_rows: int, num_inputs: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random stored bytes with scales of a sane size: [rows, bytes]."""
    kind, generator = KINDS[name], np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (num_rows * num_inputs // kind.block_elements, kind.block_bytes), np.uint8)
    for place in HALVES.get(name, (0,)):
        halves = generator.uniform(-0.01, 0.01, len(blocks)).astype("<f2")
        blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


def numbers(coded: GroupCodes, coding: Any) -> np.ndarray[Any, Any]:
    scales, minima = (np.repeat(part, coding.group, axis=1) for part in (coded.scales, coded.minima))
    return (coded.codes.astype(np.float32) - np.float32(coding.zero)) * scales + minima


@pytest.mark.parametrize("name", CODINGS)
def test_codes_are_the_numbers_that_are_stored(name: str) -> None:
    raw = stored_rows(name, 5, 512).reshape(-1)
    coded, coding = read_codes(raw, name, 512), CODINGS[name]
    assert coded.codes.shape == (5, 512) and coded.scales.shape == coded.minima.shape == (5, 512 // coding.group)
    assert int(coded.codes.max()) < 2**coding.bits and (coding.has_minimum or not coded.minima.any())
    expected = dequantize(raw, name, (5, 512))
    np.testing.assert_allclose(numbers(coded, coding), expected, rtol=1e-6, atol=1e-7)


def test_numbers_become_the_nearest_of_255_steps() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    rows[2, 32:64] = 0
    rows[3, 5] = 100
    coded = make_codes(rows)
    found = numbers(coded, INT8)
    steps = np.repeat(np.abs(rows.reshape(7, 3, 32)).max(axis=2) / 127, 32, axis=1)
    assert np.all(np.abs(found - rows) <= steps * 0.51 + np.abs(rows) * 2.0**-10)
    assert not found[2, 32:64].any()


def test_what_is_no_number_stays_none() -> None:
    rows = np.ones((1, 64), np.float32)
    rows[0, 3] = np.nan
    found = numbers(make_codes(rows), INT8)
    assert np.isnan(found[0, :32]).all() and np.isfinite(found[0, 32:]).all()


def test_codes_are_those_of_the_formula() -> None:
    generator = np.random.default_rng(5)
    magnitudes = 10.0 ** generator.integers(-12, 7, (50, 1))
    rows = (generator.normal(size=(50, 96)) * magnitudes).astype(np.float32)
    rows[3, :32], rows[4, 7], rows[5, 40], rows[6, :32] = 0, np.inf, -np.inf, np.arange(32) - 15.5
    groups = rows.reshape(50, 3, 32)
    with np.errstate(all="ignore"):
        scales = (np.abs(groups).max(axis=2) / 127).astype(np.float16).astype(np.float32)
        steps = np.rint(groups / scales[:, :, None])
    expected = np.where(np.isfinite(steps), np.clip(steps, -127, 127), 0) + INT8.zero
    found = make_codes(rows)
    np.testing.assert_array_equal(found.scales, scales)
    np.testing.assert_array_equal(found.codes, expected.astype(np.uint8).reshape(rows.shape))
