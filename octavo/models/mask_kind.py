"""What a transformers mask function lets a query see: everything before it, a sliding window, or its own chunk.

transformers describes a mask as a function (batch, head, query position, key position) -> bool. It is evaluated here at
positions far beyond any probing batch, so a window of thousands of tokens is found without running that many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from octavo.errors import UnsupportedModelError

MaskFunction = Callable[[Any, Any, Any, Any], Any]

_NUM_EXACT_ROWS = 6
"""Queries whose whole row of the mask is compared with the kind that was found."""


class MaskKind(NamedTuple):
    """The positions a query at p sees: 0..p (`full`), p - span + 1..p (`window`), p // span * span..p (`chunk`)."""

    kind: Literal["full", "window", "chunk"]
    span: int = 0

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Whether each query position sees each key position, broadcast as torch does."""
        seen = key <= query
        if self.kind == "window":
            return seen & (key > query - self.span)
        if self.kind == "chunk":
            return seen & (key // self.span == query // self.span)
        return seen

    def describe(self) -> str:
        return {
            "full": "full attention",
            "window": f"a sliding window of {self.span} tokens",
            "chunk": f"chunks of {self.span} tokens",
        }[self.kind]


def find_mask_kind(mask_function: MaskFunction, length: int) -> MaskKind:
    """The kind of `mask_function`, looked at for positions 0 to `length` - 1.

    A window or chunk of `length` tokens or more cannot be told from full attention (and does not differ from it).
    Raises `UnsupportedModelError` when the mask is none of the three, for example lets a query see later tokens.
    """
    zero = torch.zeros((), dtype=torch.long)
    positions = torch.arange(length)
    sees_first = _evaluate(mask_function, positions, zero)
    span = 0 if bool(sees_first.all()) else int(sees_first.long().argmin())
    if span == 0:
        found = MaskKind("full")
    elif span == 1 or bool(_evaluate(mask_function, zero + span, zero + 1)):
        found = MaskKind("window", span)
    else:
        found = MaskKind("chunk", span)
    rows = {0, 1, span - 1, span, 2 * span + 1, length - 1}
    for row in sorted(row for row in rows if 0 <= row < length)[:_NUM_EXACT_ROWS]:
        query = zero + row
        if not torch.equal(_evaluate(mask_function, query, positions), found.visible(query, positions)):
            raise UnsupportedModelError(
                f"The model's attention mask at position {row} is neither causal, nor a sliding window, nor a chunk.",
                remedy="Octavo computes causal attention only; use another model.",
                position=row,
            )
    return found


def _evaluate(mask_function: MaskFunction, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros((), dtype=torch.long)
    seen = torch.as_tensor(mask_function(zero, zero, query, key), dtype=torch.bool)
    return seen.expand_as(query + key)
