"""What a module adds to its scores, as a slope per head: a number times how far the key stands from the query (ALiBi).

A number that is added to all scores of one query changes no weight, so only differences within a row count.
"""

from __future__ import annotations

import torch


def fit_slopes(added: torch.Tensor, visible: torch.Tensor) -> torch.Tensor | None:
    """[heads]: what a score gains per position of its key, by least squares; None where nothing is added.

    added: float [heads, tokens, tokens], what is added to the score of query (row) and key (column); visible: bool of
    the same shape.
    """
    rise, distance = _by_row(added, visible)
    slopes = (rise * distance).sum(dim=(1, 2)) / (distance * distance).sum(dim=(1, 2)).clamp(min=1.0)
    return slopes.float() if bool(slopes.any()) else None


def num_linear_tokens(
    added: torch.Tensor, visible: torch.Tensor, slopes: torch.Tensor | None, *, is_exact: bool
) -> int:
    """How many tokens a sequence may have so that all of `added` has these slopes; the number of rows if all has.

    With `is_exact` up to float32's rounding, else up to that of 16 bits, as it adds up in two scores: of the slopes, of
    their products with positions, and of those divided by the scale.
    """
    rise, distance = _by_row(added, visible)
    bent = rise if slopes is None else rise - slopes.double()[:, None, None] * distance
    allowed = 1e-5 + float(added[visible].abs().max()) * (2.0**-20 if is_exact else 2.0**-6)
    rows = (bent.abs() > allowed).any(dim=2).any(dim=0)
    return int(rows.long().argmax()) if bool(rows.any()) else len(rows)


def _by_row(added: torch.Tensor, visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(what each visible key gains over the query's own one, how far it stands from it), in float64; else 0."""
    positions = torch.arange(added.shape[1], device=added.device)
    own = added.double().diagonal(dim1=1, dim2=2)[:, :, None]
    rise = (added.double() - own).masked_fill(~visible, 0.0)
    distance = (positions[None, :] - positions[:, None]).double().expand_as(rise).masked_fill(~visible, 0.0)
    return rise, distance
