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
) -> list[torch.Tensor]:
    """Random rows [1, count, size] for which `first` gives numbers of each of `MAGNITUDES`."""
    rows = torch.randn(1, count, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    spread = float(first(rows).float().std())
    return [(rows * (magnitude / max(spread, 1e-6))).to(dtype) for magnitude in MAGNITUDES]


def differs(found: Any, expected: Any) -> bool:
    """Whether two results differ by more than the order of operations and where they are rounded explain."""
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return True
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return True
    error = (found.float() - expected.float()).norm()
    return not bool(error <= _TOLERANCES[expected.dtype] * expected.float().norm())
