"""Views of states in the cache's tensors, and what binding them checks; `kv_memory` does it for K and V."""

from __future__ import annotations

import torch

from octavo.attention.state import StateGroup, StateLayer, StateView
from octavo.errors import BindError, InvariantError
from octavo.kv.layout import LayerPlacement, block_bytes
from octavo.kv.specs import MambaSpec
from octavo.kv.state_layout import strided_states


def view_states(place: LayerPlacement, num_blocks: int, tensor: torch.Tensor) -> StateView:
    """The states of one layer inside its tensor, no copy.

    Raises `LayoutError` for pages that do not hold whole elements, `InvariantError` when a view would leave its tensor
    or its page.
    """
    if not isinstance(place.spec, MambaSpec):
        raise InvariantError(f"layer {place.layer_name} of kind {place.spec.kind} has no state to view")
    states = []
    for strided in strided_states(place.spec, num_blocks):
        elements = tensor.view(getattr(torch, strided.dtype))
        last = strided.offset + sum(
            (size - 1) * step for size, step in zip(strided.shape, strided.strides, strict=True)
        )
        if last >= elements.numel():
            raise InvariantError(
                f"a state of {place.layer_name} ends at element {last}, its tensor {place.tensor_index} has "
                f"{elements.numel()}"
            )
        states.append(elements.as_strided(strided.shape, strided.strides, strided.offset))
    view = StateView(tuple(states))
    _check_addresses(place, num_blocks, tensor, view)
    return view


def refuse_states(layer: StateLayer, place: LayerPlacement, found: StateView, num_blocks: int) -> None:
    """Raise `BindError` unless `found` has the shapes and dtypes that the layer needs."""
    wanted = [
        ((num_blocks, *shape), getattr(torch, dtype))
        for shape, dtype in zip(layer.spec.shapes, layer.spec.dtypes, strict=True)
    ]
    given = [(tuple(state.shape), state.dtype) for state in found.states]
    if wanted != given:
        raise BindError(
            f"{place.layer_name} needs states {_describe(wanted)}, and its view has {_describe(given)}.",
            remedy="Plan again from the model that is loaded.",
        )


def make_state_group(index: int, spec: MambaSpec) -> StateGroup:
    """The group of layers of `spec`, in which a state covers a block's tokens, or all of a request's."""
    return StateGroup(index, spec.tokens_per_state)


def _check_addresses(place: LayerPlacement, num_blocks: int, tensor: torch.Tensor, found: StateView) -> None:
    """In the first and the last block the states fill exactly the bytes that the layout gives to their page."""
    for block in {0, num_blocks - 1}:
        ranges = []
        for state in found.states:
            start = state[block].data_ptr() - tensor.data_ptr()
            ranges.append((start, start + state[block].nbytes))
        ranges.sort()
        start, stop = block_bytes(place, block)
        joined = [start, *(edge for edges in ranges for edge in edges), stop]
        if any(joined[i] != joined[i + 1] for i in range(0, len(joined), 2)):
            raise InvariantError(
                f"the states of {place.layer_name} in block {block} are viewed at bytes {ranges} of tensor "
                f"{place.tensor_index}, the layout says {start} to {stop}"
            )


def _describe(states: list[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{list(shape)} of {dtype}" for shape, dtype in states)
