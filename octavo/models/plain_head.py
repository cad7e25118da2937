"""Heads that are one linear layer and nothing else: called directly, they cost their product alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from octavo.models.modules.linear import PackedLinear


def plain_head(model: nn.Module, compute: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> Any:
    """The module of `model` whose result on `hidden` [tokens, hidden size] is what `compute(hidden)` returns.

    None where there is none: the model does something to the rows before it, or to the logits behind it.
    """
    calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []
    handles = [
        module.register_forward_hook(lambda module, given, result: calls.append((module, given[0], result)))
        for module in model.modules()
        if isinstance(module, PackedLinear)
    ]
    try:
        logits = compute(hidden)
    finally:
        for handle in handles:
            handle.remove()
    if len(calls) != 1:
        return None
    module, given, result = calls[0]
    is_given = given.data_ptr() == hidden.data_ptr() and given.numel() == hidden.numel()
    is_result = result.data_ptr() == logits.data_ptr() and result.numel() == logits.numel()
    return module if is_given and is_result and result.dtype == logits.dtype else None
