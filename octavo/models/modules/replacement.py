"""Replace a model's hot modules by faster ones of the same kind.

A module is known by its type and its tensors, never by the model it belongs to; what is not known stays as it is. Each
is tried beside its replacement, and the model is examined again afterwards, so a module that computed something else
would be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.models.load_clock import part
from octavo.models.modules.fused_attention import Heads, faster_attention
from octavo.models.modules.gated_mlp import faster_mlp
from octavo.models.modules.linear import FusedInput, FusedLinear, PackedLinear
from octavo.models.modules.mapped_weights import MappedFiles
from octavo.models.modules.rms_norm import RMSNormKinds
from octavo.models.modules.weights import Weight, is_coded, is_plain_linear
from octavo.models.parallel.rank_modules import RowParallelLinear


class LinearCall(NamedTuple):
    """A linear layer's place in the model, and the tensor it was given."""

    path: str
    linear: nn.Linear
    rows: torch.Tensor


class SeenCalls(NamedTuple):
    """What one forward of a model showed."""

    linears: list[LinearCall]
    """In order."""
    arguments: dict[str, dict[str, Any]]
    """Path of a module that knows its layer's index -> what it was called with by name, but for its rows."""


class Replaced(NamedTuple):
    """What came of it."""

    weights: list[Weight]
    """Those that stand in the places of linear layers now."""
    modules: dict[nn.Module, nn.Module]
    """Attention module -> what stands in its place now."""


@contextmanager
def watch_calls(model: nn.Module) -> Iterator[SeenCalls]:
    """The calls of the model's modules inside this. Leaves no hook behind."""
    seen = SeenCalls([], {})

    def note_linear(path: str, linear: nn.Module, rows: torch.Tensor) -> None:
        if isinstance(linear, nn.Linear):
            seen.linears.append(LinearCall(path, linear, rows))

    def note_arguments(path: str, arguments: dict[str, Any]) -> None:
        seen.arguments[path] = {name: value for name, value in arguments.items() if name != "hidden_states"}

    handles = []
    for path, module in model.named_modules():
        if is_plain_linear(module):
            handles.append(
                module.register_forward_pre_hook(lambda linear, args, path=path: note_linear(path, linear, args[0]))
            )
        elif isinstance(getattr(module, "layer_idx", None), int):
            handles.append(
                module.register_forward_pre_hook(
                    lambda _module, _args, arguments, path=path: note_arguments(path, arguments), with_kwargs=True
                )
            )
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@part("replace_modules")
def replace_modules(model: Any, seen: SeenCalls, heads: Mapping[nn.Module, Heads]) -> Replaced:
    """Put faster modules into `model`.

    `seen` is what one forward showed: linear layers in one parent that were given the same tensor, one after the other,
    become one. `heads` are the modules that called attention.
    """
    kinds = RMSNormKinds()
    for path, module in list(model.named_modules()):
        if (norm := kinds.faster(module)) is not None:
            _put(model, path, norm)
    weights: list[Weight] = []
    mapped = MappedFiles()
    by_parent: dict[str, list[_Joint]] = {}
    for run in _runs_of_one_input(seen.linears):
        joint = _join(model, run, mapped)
        weights.append(joint.weight)
        owner = _parent(run[0].path)
        if isinstance(model.get_submodule(owner), RowParallelLinear):
            joint = joint._replace(modules=[model.get_submodule(owner)])
            owner = _parent(owner)
        by_parent.setdefault(owner, []).append(joint)
    modules: dict[nn.Module, nn.Module] = {}
    for path, joints in by_parent.items():
        module = model.get_submodule(path)
        faster = _faster(module, joints, heads.get(module), seen.arguments.get(path, {}))
        if faster is not None and path:
            _put(model, path, faster)
            modules[module] = faster
    return Replaced(weights, modules)


class _Joint(NamedTuple):
    """Linear layers of one input, once they share a product."""

    weight: Weight
    modules: list[nn.Module]
    sizes: list[int]
    in_size: int


def _faster(
    module: nn.Module, joints: list[_Joint], heads: Heads | None, arguments: dict[str, Any]
) -> nn.Module | None:
    """What can stand in the place of a module that has two products, its input's and its output's."""
    if len(joints) != 2 or len(joints[1].modules) != 1:
        return None
    inputs, output = joints[0], joints[1].modules[0]
    if heads is not None:
        num_queries, num_keys = heads.num_heads * heads.head_size, heads.num_kv_heads * heads.head_size
        sizes = [num_queries, num_keys, heads.num_kv_heads * heads.value_size]
        if inputs.sizes != sizes and inputs.sizes != [sum(sizes)]:
            return None
        return faster_attention(module, inputs.weight, output, heads, arguments, inputs.in_size)
    size = joints[1].in_size
    if inputs.sizes != [size, size] and inputs.sizes != [2 * size]:
        return None
    return faster_mlp(module, inputs.weight, output, in_size=inputs.in_size, size=size)


def _join(model: nn.Module, run: list[LinearCall], mapped: MappedFiles) -> _Joint:
    """Put modules that share one product in the places of a run's linear layers."""
    linears = [call.linear for call in run]
    sizes, in_size = [linear.out_features for linear in linears], linears[0].in_features
    if len(run) > 1:
        fused = FusedInput(linears)
        modules: list[nn.Module] = [FusedLinear(fused, index, linear) for index, linear in enumerate(linears)]
        weight = fused.packed
    else:
        single = PackedLinear(linears[0])
        modules, weight = [single], single.packed
    for call, module in zip(run, modules, strict=True):
        if not is_coded(call.linear) and call.linear.weight.data_ptr() != weight.address:
            mapped.let_go(call.linear.weight)
        call.linear.register_parameter("weight", None)  # the plain weight goes at once, whoever still holds the layer
        _put(model, call.path, module)
    return _Joint(weight, modules, sizes, in_size)


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
        and _parent(one.path) == _parent(other.path)
        and (one.linear.bias is None) == (other.linear.bias is None)
        and is_coded(one.linear) == is_coded(other.linear)
    )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module.eval())
