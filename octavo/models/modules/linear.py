"""Linear layers whose weights lie in the order that oneDNN's bfloat16 kernels read.

torch reorders a plain weight at every call, or uses a slower kernel. Reordered once, one weight serves every number of
rows, at about twice the speed for few rows (decode) and a little more than torch's for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def can_pack(module: nn.Module) -> bool:
    """Whether `module` is a plain linear layer (no subclass, no hook) that is faster when packed, on this machine."""
    if type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        return False
    weight = module.weight
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and (module.bias is None or module.bias.dtype == torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class PackedWeight:
    """A reordered weight [outputs, inputs] with its bias. Owns: the only copy of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        self._bias = None if bias is None else bias.detach()
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., outputs] from [..., inputs]."""
        result: torch.Tensor = self._multiply(rows, self._weight, self._bias, "none", [], "")
        return result

    def plain(self) -> torch.Tensor:
        """A copy of the weight in torch's order: slow, for code that looks at a layer's weight."""
        return self._weight.to_dense()


class PackedLinear(nn.Module):
    """In place of `nn.Linear`. Owns: its packed weight. Never: keeps the plain one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.packed = PackedWeight(linear.weight, linear.bias)

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
        biases: list[Any] = [linear.bias for linear in linears]
        joint_bias = None if biases[0] is None else torch.cat(biases)
        self.packed = PackedWeight(torch.cat([linear.weight for linear in linears]), joint_bias)
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
