"""However the rows are shared out, panels hold the numbers of the file."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.formats.dequantize import dequantize
from octavo.formats.gguf import TensorInfo
from octavo.models import panel_reading
from octavo.models.panel_reading import read_panels
from tests.formats.test_codes import stored_rows


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("codes_at_once", [1, 64 * 20, 1 << 20])
@pytest.mark.parametrize("num_rows", [1, 16, 75])
def test_rows_are_those_of_the_file(
    num_rows: int, codes_at_once: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel_reading, "_CODES_AT_ONCE", codes_at_once)
    monkeypatch.setattr(panel_reading, "_CODES_WORTH_A_THREAD", 64 * 16)
    raw = stored_rows("Q4_1", num_rows, 64).reshape(-1)
    info = TensorInfo("Q4_1", (num_rows, 64), 0, raw.size)
    order = np.random.default_rng(0).permutation(num_rows)
    expected = dequantize(raw, "Q4_1", (num_rows, 64))
    everywhere = np.arange(num_rows)
    found = read_panels(raw, info, num_threads=num_threads).numbers(everywhere)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    found = read_panels(raw, info, order, num_threads=num_threads).numbers(everywhere)
    np.testing.assert_allclose(found, expected[order], rtol=1e-6, atol=1e-6)
