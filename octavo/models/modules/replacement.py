"""Replace a model's hot modules by faster ones of the same kind.

A module is known by its type and its tensors, never by the model it belongs to; what is not known stays as it is. The
model is examined again after the replacement, so a module that computed something else would be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.models.modules.linear import FusedInput, FusedLinear, PackedLinear, can_pack
from octavo.models.modules.rms_norm import RMSNormKinds


class LinearCall(NamedTuple):
    """A linear layer's place in the model, and the tensor it was given."""

    path: str
    linear: nn.Linear
    rows: torch.Tensor


@contextmanager
def watch_linears(model: nn.Module) -> Iterator[list[LinearCall]]:
    """The calls of the model's linear layers inside this, in order. Leaves no hook behind."""
    calls: list[LinearCall] = []
    handles = []
    for path, module in model.named_modules():
        if can_pack(module):
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, args, path=path: calls.append(LinearCall(path, module, args[0]))
                )
            )
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def replace_modules(model: Any, linear_calls: list[LinearCall]) -> int:
    """Put faster modules into `model`; returns the bytes of the packed weights.

    `linear_calls` is what one forward showed: neighbours in one parent that were given the same tensor become one.
    """
    kinds = RMSNormKinds()
    for path, module in list(model.named_modules()):
        if (norm := kinds.faster(module)) is not None:
            _put(model, path, norm)
    num_bytes = 0
    for run in _runs_of_one_input(linear_calls):
        if len(run) == 1:
            packed = PackedLinear(run[0].linear)
            _replace(model, run[0], packed)
            num_bytes += packed.packed.num_bytes
        else:
            fused = FusedInput([call.linear for call in run])
            for index, call in enumerate(run):
                _replace(model, call, FusedLinear(fused, index, call.linear))
            num_bytes += fused.packed.num_bytes
    return num_bytes


def _runs_of_one_input(calls: list[LinearCall]) -> list[list[LinearCall]]:
    """The layers that were called once each, neighbours with one input and one parent together."""
    counts: dict[int, int] = {}
    for call in calls:
        counts[id(call.linear)] = counts.get(id(call.linear), 0) + 1
    runs: list[list[LinearCall]] = []
    for call in calls:
        if counts[id(call.linear)] > 1:
            if not any(call.linear is run[0].linear for run in runs):
                runs.append([call])
        elif runs and _belong_together(runs[-1][-1], call):
            runs[-1].append(call)
        else:
            runs.append([call])
    return runs


def _belong_together(one: LinearCall, other: LinearCall) -> bool:
    return (
        one.rows is other.rows
        and one.path.rpartition(".")[0] == other.path.rpartition(".")[0]
        and (one.linear.bias is None) == (other.linear.bias is None)
    )


def _replace(model: nn.Module, call: LinearCall, module: nn.Module) -> None:
    """Put `module` in the layer's place; the plain weight goes at once, whoever still holds the layer."""
    call.linear.register_parameter("weight", None)
    _put(model, call.path, module)


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module.eval())
