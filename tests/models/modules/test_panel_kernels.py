"""Products with coded weights against float64, on every path that this CPU can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.formats.codes import CODINGS, read_codes
from octavo.models.modules import panel_weight
from octavo.models.modules.panel_kernels import byte_paths, line_bytes, tile_of
from octavo.models.modules.panel_tile_kernels import LINE_BYTES, BytePath
from octavo.models.modules.panel_weight import PanelWeight
from octavo.models.modules.panels import Panels
from tests.formats.test_codes import stored_rows

PATHS = byte_paths()
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-3}
"""Norm of the error by norm of the result: rows are whole numbers of 15 bits, results are rounded."""
DIFFERENT = {(coding.bits, coding.group, coding.has_minimum): name for name, coding in CODINGS.items()}
"""A type for each kind of panel."""


def panels_of(name: str, num_outputs: int, num_inputs: int) -> Panels:
    panels = Panels(num_outputs, num_inputs, CODINGS[name], name)
    panels.fill(0, read_codes(stored_rows(name, num_outputs, num_inputs).reshape(-1), name, num_inputs))
    return panels


def weight_on(path: BytePath, monkeypatch: pytest.MonkeyPatch, *given: Any) -> PanelWeight:
    monkeypatch.setattr(panel_weight, "byte_paths", lambda: (path,))
    return PanelWeight(*given)


def exact(rows: torch.Tensor, panels: Panels) -> torch.Tensor:
    return rows.double() @ torch.from_numpy(panels.numbers(np.arange(panels.num_outputs))).double().T


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT.values())
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_product_is_that_of_the_numbers(path: BytePath, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = panels_of(name, 37, 256)
    for dtype in (torch.bfloat16,) if path is not PATHS[0] else TOLERANCE:
        weight = weight_on(path, monkeypatch, [panels], None, dtype)
        for num_rows in (1, 2, 3, 8, 11, 300):
            rows = torch.randn(num_rows, 256, generator=torch.Generator().manual_seed(num_rows)).to(dtype)
            rows[0] *= 1e-3
            assert error(weight.apply(rows), exact(rows, panels)) < TOLERANCE[dtype]


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = PanelWeight([panels_of("Q4_1", 48, 256)], None, torch.float32)
    rows = torch.randn(270, 256)
    alone = torch.cat([weight.apply(row) for row in rows.split(1)])
    for num_rows in (3, 8, 9, 270):
        assert torch.equal(weight.apply(rows[:num_rows]), alone[:num_rows])


@pytest.mark.slow
def test_numbers_that_are_none_are_not_hidden() -> None:
    weight = PanelWeight([panels_of("Q8_0", 16, 64)], None, torch.float32)
    rows = torch.ones(3, 64)
    rows[0, 7], rows[1, 40] = float("nan"), float("inf")
    found = weight.apply(rows)
    assert not torch.isfinite(found[:2]).any() and torch.isfinite(found[2]).all()
    assert torch.equal(weight.apply(torch.zeros(1, 64)), torch.zeros(1, 16))


def test_lines_of_rows_that_fill_no_tile() -> None:
    path = PATHS[-1]
    eight = BytePath(path.vector, path.dot, path.dot_bits, 8)
    assert [tile_of(eight, num_rows) for num_rows in (1, 2, 3, 5, 8, 11)] == [1, 2, 4, 8, 8, 8]
    assert line_bytes(eight, 11, 3) == (8 + 4) * 3 * LINE_BYTES and line_bytes(eight, 16, 1) == 16 * LINE_BYTES
