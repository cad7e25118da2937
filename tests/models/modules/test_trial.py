from __future__ import annotations

import pytest
import torch

from octavo.models.modules.trial import MAGNITUDES, differs, trial_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trial_rows_reach_every_magnitude(dtype: torch.dtype) -> None:
    weight = 0.02 * torch.randn(24, 40).to(dtype)
    rows = trial_rows(5, 40, dtype, lambda rows: rows @ weight.T)
    spreads = [float((one @ weight.T).float().std()) for one in rows]
    assert spreads == pytest.approx(MAGNITUDES, rel=0.05)
    assert all(one.shape == (1, 5, 40) and one.dtype == dtype for one in rows)


def test_rows_that_always_give_zero_stay_numbers() -> None:
    rows = trial_rows(2, 8, torch.float32, torch.zeros_like)
    assert all(torch.isfinite(one).all() for one in rows)


def test_what_differs() -> None:
    rows = torch.randn(3, 8)
    assert not differs(rows, rows) and not differs(rows * (1 + 1e-6), rows)
    assert differs(rows * (1 + 1e-4), rows)
    assert differs(rows[:2], rows) and differs(rows.bfloat16(), rows) and differs(None, rows)
    assert differs(torch.full_like(rows, torch.nan), rows)
    assert not differs(rows.bfloat16(), rows.bfloat16())
    assert differs((rows * 1.05).bfloat16(), rows.bfloat16())
