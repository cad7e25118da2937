from __future__ import annotations

import numpy as np
import pytest

from octavo.formats.codes import CODINGS, INT8, make_codes, read_codes
from octavo.formats.dequantize import dequantize
from octavo.models.modules.panels import Panels
from tests.formats.test_codes import stored_rows


@pytest.mark.parametrize("name", CODINGS)
def test_panels_give_the_numbers_back(name: str) -> None:
    raw = stored_rows(name, 37, 256)
    panels = Panels(37, 256, CODINGS[name], name)
    for first in (0, 16, 32):
        panels.fill(first, read_codes(raw[first : first + 16].reshape(-1), name, 256))
    found = panels.numbers(np.array([36, 0, 15, 16, 16]))
    expected = dequantize(raw.reshape(-1), name, (37, 256))[[36, 0, 15, 16, 16]]
    tolerance = 2.0**-10 * np.abs(expected).max()  # scales in float16
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_scales_of_simple_types_are_exact() -> None:
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        raw = stored_rows(name, 16, 64)
        panels = Panels(16, 64, CODINGS[name], name)
        panels.fill(0, read_codes(raw.reshape(-1), name, 64))
        expected = dequantize(raw.reshape(-1), name, (16, 64))
        np.testing.assert_allclose(panels.numbers(np.arange(16)), expected, rtol=1e-6, atol=1e-9)


def test_rows_that_end_inside_a_group() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 41)).astype(np.float32)
    panels = Panels(3, 41, INT8, "int8")
    panels.fill(0, make_codes(np.pad(rows, ((0, 0), (0, 23)))))
    np.testing.assert_allclose(panels.numbers(np.arange(3)), rows, atol=0.02)


def test_bytes_are_those_of_whole_panels() -> None:
    panels = Panels(17, 64, CODINGS["Q4_1"], "Q4_1")
    assert panels.num_bytes == 2 * 16 * 64 // 32 * CODINGS["Q4_1"].group_bytes
    assert panels.codes.ctypes.data % 64 == panels.scales.ctypes.data % 64 == 0
