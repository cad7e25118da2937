from __future__ import annotations

import pytest
import torch

from octavo.models.modules.trial import MAGNITUDES, differs, trial_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trial_rows_reach_every_magnitude(dtype: torch.dtype) -> None:
    weight = 0.02 * torch.randn(24, 40).to(dtype)
    rows = trial_rows(10, 40, dtype, lambda rows: rows @ weight.T)
    spreads = [float((row @ weight.T).float().std()) for row in rows[0]]
    assert spreads == pytest.approx([*MAGNITUDES, *MAGNITUDES, *MAGNITUDES[:2]], rel=0.6)
    assert rows.shape == (1, 10, 40) and rows.dtype == dtype


def test_rows_that_always_give_zero_stay_numbers() -> None:
    assert torch.isfinite(trial_rows(2, 8, torch.float32, torch.zeros_like)).all()


def test_what_differs() -> None:
    rows = torch.randn(3, 8)
    assert not differs(rows, rows) and not differs(rows * (1 + 1e-6), rows)
    assert differs(rows * (1 + 1e-4), rows)
    assert differs(rows[:2], rows) and differs(rows.bfloat16(), rows) and differs(None, rows)
    assert differs(torch.full_like(rows, torch.nan), rows)
    one_small_row = torch.tensor([[1e-3], [1.0], [1e3]]) * rows
    assert not differs(one_small_row, one_small_row.clone())
    changed = one_small_row.clone()
    changed[0] *= 1.01
    assert differs(changed, one_small_row), "a large row must not hide a small one"
    heads = torch.randn(1, 2, 3, 8)
    assert not differs(heads, heads.clone()) and differs(heads + torch.eye(3, 8)[None, None], heads)
    assert not differs(rows.bfloat16(), rows.bfloat16())
    assert differs((rows * 1.05).bfloat16(), rows.bfloat16())
