"""Weights of linear layers as they are computed with: one layer's, or those of several layers of one input together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn


class Weight(Protocol):
    """A weight [outputs, inputs] with its bias, in the order in memory that its kernel reads."""

    num_bytes: int
    dtype: torch.dtype

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., outputs] from [..., inputs]."""
        ...

    def plain(self) -> torch.Tensor:
        """The weight in torch's order, a copy where the kernel's is another; for code that looks at a weight."""
        ...


class PackedWeight:
    """Reordered as oneDNN's bfloat16 kernels read it. Owns: the only copy of the weight.

    torch reorders a plain weight at every call, or uses a slower kernel. Reordered once, one weight serves every number
    of rows, at about twice the speed for few rows (decode) and a little more than torch's for many.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.dtype = weight.dtype
        self._weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        self._bias = None if bias is None else bias.detach()
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._multiply(rows, self._weight, self._bias, "none", [], "")
        return result

    def plain(self) -> torch.Tensor:
        return self._weight.to_dense()


class PlainWeight:
    """In torch's own order, for dtypes without a kernel of another. Owns: the only copy of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.dtype = weight.dtype
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(rows, self._weight, self._bias)

    def plain(self) -> torch.Tensor:
        return self._weight


def is_plain_linear(module: nn.Module) -> bool:
    """Whether `module` is a linear layer on the CPU and nothing else: no subclass, no hook."""
    return (
        type(module) is nn.Linear
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and module.weight.device.type == "cpu"
        and module.weight.dtype in (torch.bfloat16, torch.float32)
        and (module.bias is None or module.bias.dtype == module.weight.dtype)
    )


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` are faster when packed, on this machine."""
    return (
        dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def weight_of(linears: Sequence[nn.Linear]) -> Weight:
    """The weights of `linears`, one below the other; all have a bias or none has."""
    kind = PackedWeight if can_pack(linears[0].weight.dtype) else PlainWeight
    if len(linears) == 1:
        return kind(linears[0].weight, linears[0].bias)
    biases: list[Any] = [linear.bias for linear in linears]
    joint_bias = None if biases[0] is None else torch.cat(biases)
    return kind(torch.cat([linear.weight.detach() for linear in linears]), joint_bias)
