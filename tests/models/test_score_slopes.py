from __future__ import annotations

import pytest
import torch

from octavo.models.score_slopes import fit_slopes, num_linear_tokens

TOKENS = 30
DISTANCE = (torch.arange(TOKENS)[None, :] - torch.arange(TOKENS)[:, None]).float()
VISIBLE = (DISTANCE <= 0).expand(2, -1, -1)
SLOPES = torch.tensor([0.3, 0.0])


def bias(slopes: torch.Tensor) -> torch.Tensor:
    return (slopes[:, None, None] * DISTANCE).masked_fill(~VISIBLE, -1e9)


def test_slopes_of_a_line() -> None:
    added = bias(SLOPES) + torch.arange(TOKENS)[None, :, None] * 7.0  # a number per query changes nothing
    slopes = fit_slopes(added, VISIBLE)
    assert slopes is not None
    torch.testing.assert_close(slopes, SLOPES, atol=1e-6, rtol=1e-6)
    assert num_linear_tokens(added, VISIBLE, slopes, is_exact=True) == TOKENS


def test_nothing_added() -> None:
    added = torch.zeros(2, TOKENS, TOKENS)
    assert fit_slopes(added, VISIBLE) is None
    assert num_linear_tokens(added, VISIBLE, None, is_exact=True) == TOKENS
    added[1, 20, 4] = 1.0
    assert num_linear_tokens(added, VISIBLE, None, is_exact=True) == 20


@pytest.mark.parametrize("bend", [5, 12, 29])
def test_where_a_line_bends(bend: int) -> None:
    added = bias(SLOPES)
    added[0] = torch.where(bend + DISTANCE <= 0, added[0] - 0.05, added[0])
    assert num_linear_tokens(added, VISIBLE, SLOPES, is_exact=True) == bend
    assert num_linear_tokens(added, VISIBLE, SLOPES, is_exact=False) == TOKENS


def test_a_window_hides_what_lies_outside() -> None:
    visible = VISIBLE & (DISTANCE > -4)
    added = torch.where(DISTANCE <= -4, torch.tensor(50.0), bias(SLOPES))
    slopes = fit_slopes(added, visible)
    assert slopes is not None
    torch.testing.assert_close(slopes, SLOPES, atol=1e-6, rtol=1e-6)
    assert num_linear_tokens(added, visible, slopes, is_exact=True) == TOKENS
