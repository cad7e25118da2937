"""A weight that stays coded where a model keeps its parameters.

A model's own code sees a tensor of the usual shape and dtype. A linear layer multiplies with it, an embedding looks
rows up in it, as it is; whatever else is done with it is done with its numbers, made for that moment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from octavo.models.modules.panel_weight import PanelWeight, numbers_of
from octavo.models.modules.panels import Panels

_ABOUT = frozenset(
    {
        torch.Tensor.dim,
        torch.Tensor.element_size,
        torch.Tensor.is_floating_point,
        torch.Tensor.numel,
        torch.Tensor.requires_grad_,
        torch.Tensor.size,
        torch.Tensor.to,
        torch._has_compatible_shallow_copy_type,
        torch.is_floating_point,
        torch.numel,
    }
)
"""What asks about a tensor and not for its numbers."""


class CodedTensor(torch.Tensor):
    """[outputs, inputs]. Owns: its panels, or shares them with the `PanelWeight`s made of them."""

    panels: Panels
    num_expansions: int
    """How often its numbers were needed."""

    @staticmethod
    def __new__(cls, panels: Panels, dtype: torch.dtype) -> CodedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, (panels.num_outputs, panels.num_inputs), dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        tensor: CodedTensor = made
        tensor.panels = panels
        tensor.num_expansions = 0
        tensor._weight = None
        return tensor

    _weight: PanelWeight | None

    def numbers(self) -> torch.Tensor:
        """A plain tensor of the same numbers."""
        self.num_expansions += 1
        return numbers_of(self.panels, self.dtype)

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[..., outputs] from [..., inputs]."""
        if self._weight is None:
            self._weight = PanelWeight([self.panels], None, self.dtype)
        result = self._weight.apply(rows)
        return result if bias is None else result + bias

    def look_up(self, outputs: torch.Tensor) -> torch.Tensor:
        """[..., inputs] from [...]"""
        return numbers_of(self.panels, self.dtype, outputs.reshape(-1)).view(*outputs.shape, -1)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear and len(args) >= 2 and isinstance(args[1], cls) and type(args[0]) is torch.Tensor:
            return args[1].product(args[0], kwargs.get("bias", args[2] if len(args) > 2 else None))
        if func is functional.embedding and len(args) >= 2 and isinstance(args[1], cls):
            return args[1].look_up(args[0])
        if func is torch.Tensor.detach:
            return args[0]
        if func not in _ABOUT and getattr(func, "__name__", "") not in ("__get__", "__set__"):
            args, kwargs = tree_map_only(cls, lambda tensor: tensor.numbers(), (args, kwargs))
            return func(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func} of a tensor whose numbers are not there")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CodedTensor({list(self.shape)}, {self.panels.coding})"


def expand_used(model: nn.Module) -> None:
    """Give the model the numbers of those coded parameters whose numbers it has asked for until now."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, CodedTensor) and parameter.num_expansions:
                plain = made.setdefault(id(parameter), nn.Parameter(parameter.numbers(), requires_grad=False))
                module.register_parameter(name, plain)


def code_parameter(panels: Panels, dtype: torch.dtype) -> nn.Parameter:
    """A model's parameter."""
    return nn.Parameter(CodedTensor(panels, dtype), requires_grad=False)
