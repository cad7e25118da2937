"""Trying a faster module beside the one it would replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MAGNITUDES = (0.1, 1.0, 10.0, 100.0)
"""Sizes of the first products on trial, so that a clamp or another bend in what follows cannot hide."""

_TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Norm of the difference by norm of the result."""


def trial_rows(
    count: int, size: int, dtype: torch.dtype, first: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Random rows [1, count, size] for which `first` gives numbers of each of `MAGNITUDES` in turn."""
    rows = torch.randn(1, count, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    spread = float(first(rows).float().std())
    magnitudes = torch.tensor(MAGNITUDES).repeat(-(-count // len(MAGNITUDES)))[:count, None]
    return (rows * (magnitudes / max(spread, 1e-6))).to(dtype)


def differs(found: Any, expected: Any) -> bool:
    """Whether two results differ, in any row, by more than the order of operations and of rounding explains.

    Rows are the last dimension but one: each has a magnitude of its own.
    """
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return True
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return True
    mine, theirs = (part.float().transpose(0, -2).flatten(1) for part in (found, expected))
    errors, sizes = (mine - theirs).norm(dim=1), theirs.norm(dim=1)
    return not bool((errors <= _TOLERANCES[expected.dtype] * sizes).all())
