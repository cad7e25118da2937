"""Linear layers that compute together: those of one input share one product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from octavo.models.modules.weights import PlainWeight, can_pack, is_coded, is_plain_linear, weight_of


class PackedLinear(nn.Module):
    """In place of `nn.Linear`. Owns: its weight, packed where that is faster. Never: keeps the plain one beside it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.packed = weight_of([linear])

    @property
    def weight(self) -> torch.Tensor:
        return self.packed.plain()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.packed.apply(rows)


class FusedInput:
    """Several linear layers of one input, computed together when the first of them is asked.

    Owns: their joint weight, and between the first call and the last the input and what is not yet fetched.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.packed = weight_of(linears)
        self.sizes = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def part(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        """What layer `index` makes of `rows`: a view of the joint result."""
        if rows is not self._rows:
            self._rows = rows
            self._parts = torch.split_with_sizes(self.packed.apply(rows), self.sizes, -1)
        part = self._parts[index]
        if index == len(self.sizes) - 1:
            self._rows, self._parts = None, ()
        return part


class FusedLinear(nn.Module):
    """One of the layers of a `FusedInput`, in place of `nn.Linear`. Owns: nothing. Never: computes by itself."""

    def __init__(self, fused: FusedInput, index: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.fused = fused
        self.index = index

    @property
    def weight(self) -> torch.Tensor:
        return torch.split(self.fused.packed.plain(), self.fused.sizes)[self.index]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.fused.part(rows, self.index)


@contextmanager
def quick_products(model: nn.Module) -> Iterator[None]:
    """Plain linear layers of `model` multiply with our kernel inside this, where torch's bfloat16 is emulated.

    For a forward that is run to look at a model, before its layers are replaced. Nothing is copied.
    """
    quick = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and is_plain_linear(module) and not is_coded(module)
        if module.weight.dtype == torch.bfloat16 and not can_pack(torch.bfloat16)
    ]
    for linear in quick:
        linear.forward = PlainWeight(linear.weight, linear.bias).apply  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for linear in quick:
            del linear.forward
