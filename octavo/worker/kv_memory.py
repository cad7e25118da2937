"""From a plan to bound attention layers: allocate, view, bind. Each step takes what the one before returned.

    tensors = allocate(config, device)        one flat torch.int8 tensor per KVCacheTensor
    views   = view(config, tensors)           each layer's K and V inside its tensor, no copy
    groups  = bind(config, views, layers)     each AttentionLayer gets its view and its group

Two layers of different groups with the same slot index look into one tensor. That is sound because a block id belongs
to one group at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from octavo.attention.backend import AttentionGroup, AttentionLayer, KVCacheView
from octavo.attention.state import StateGroup, StateLayer, StateView
from octavo.config import format_bytes
from octavo.errors import BindError, ConfigError, InvariantError
from octavo.kv.base import KVCacheSpec
from octavo.kv.layout import LayerPlacement, StridedView, placements, slot_bytes, strided_view
from octavo.kv.specs import KVCacheConfig, MambaSpec
from octavo.worker.state_memory import make_state_group, refuse_states, view_states

CacheLayer = AttentionLayer | StateLayer
CacheView = KVCacheView | StateView
CacheGroup = AttentionGroup | StateGroup


def allocate(config: KVCacheConfig, device: torch.device) -> list[torch.Tensor]:
    """One tensor of zero bytes per `KVCacheTensor`, in the config's order.

    On a CPU the system hands out zeroed memory as it is first written, so an unused part costs none.
    Raises `ConfigError` when the system refuses.
    """
    make = _zeros_on_first_use if device.type == "cpu" else partial(torch.zeros, dtype=torch.int8, device=device)
    tensors: list[torch.Tensor] = []
    for index, tensor in enumerate(config.tensors):
        try:
            tensors.append(make(tensor.size_bytes))
        except (OSError, RuntimeError) as error:  # mmap raises OSError; torch RuntimeError, its OutOfMemoryError too
            total = sum(other.size_bytes for other in config.tensors)
            raise ConfigError(
                f"Tensor {index} of the KV cache, {format_bytes(tensor.size_bytes)} of {format_bytes(total)} in all, "
                f"cannot be allocated on {device}: the system has no more memory for this process.",
                remedy="Give the cache less with --kv-memory.",
                size_bytes=tensor.size_bytes,
                total_bytes=total,
            ) from error
    return tensors


def view(config: KVCacheConfig, tensors: Sequence[torch.Tensor]) -> dict[str, CacheView]:
    """Every layer's view by name, sharing layers included (theirs is their target's, the same object).

    Raises `LayoutError` for a layer without plain K and V or states, `InvariantError` when a view would leave its
    tensor or its addresses differ from those that `octavo.kv.layout` gives.
    """
    views: dict[str, CacheView] = {}
    for name, place in placements(config).items():
        views[name] = _kind_of(place.spec).view(place, config.num_blocks, tensors[place.tensor_index])
    for name, target in config.shared_layers.items():
        if target in views:
            views[name] = views[target]
    return views


def bind(config: KVCacheConfig, views: Mapping[str, CacheView], layers: Mapping[str, CacheLayer]) -> list[CacheGroup]:
    """Give every layer its view and its group; returns the groups, in the config's order.

    Raises `BindError` when the plan names a layer that the model has not, the model has one that the plan lacks, a
    sharing layer's target differs, or a layer's spec is another than the plan's. Then no layer has been changed. The
    planner may have lengthened a layer's blocks by a whole factor: that makes pages of unlike heads equal.
    """
    placed = placements(config)
    _refuse_names(set(placed) | set(config.shared_layers), set(layers))
    for name, layer in layers.items():
        _refuse_target(layer, config.shared_layers.get(name), placed)
        if name in placed:
            _refuse_kind(layer, placed[name])
            _kind_of(placed[name].spec).refuse(layer, placed[name], views[name], config.num_blocks)
    groups = [_kind_of(group.spec).make_group(index, group.spec) for index, group in enumerate(config.groups)]
    bound: Any
    for name, bound in layers.items():
        bound.kv_cache = views[name]
        bound.group = groups[placed[config.shared_layers.get(name, name)].group_index]
    return groups


def copy_blocks(tensors: Sequence[torch.Tensor], num_blocks: int, copies: Sequence[tuple[int, int]]) -> None:
    """Copy blocks, given as (source, destination), in every tensor; all sources are read before anything is written.

    A block belongs to one group, but its pages in the tensors of other groups hold nothing then, so all are copied.
    """
    for tensor in tensors if copies else ():
        pages = tensor.view(num_blocks, -1)
        # Page by page: one indexed copy of bytes takes four times as long on a CPU.
        taken = [pages[source].clone() for source, _ in copies]
        for (_, target), page in zip(copies, taken, strict=True):
            pages[target].copy_(page)


def _zeros_on_first_use(size_bytes: int) -> torch.Tensor:
    """Anonymous memory of the system, aligned to a page of it; freed with the last tensor that looks into it."""
    if not size_bytes:
        return torch.zeros(0, dtype=torch.int8)
    return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.int8)


def _view_layer(place: LayerPlacement, num_blocks: int, tensor: torch.Tensor) -> KVCacheView:
    strided = strided_view(place.spec, num_blocks)
    elements = tensor.view(getattr(torch, strided.dtype))
    _check_inside(place, strided, elements.numel())
    result = KVCacheView(
        key=elements.as_strided(strided.key_shape, strided.strides, strided.key_offset),
        value=elements.as_strided(strided.value_shape, strided.strides, strided.value_offset),
    )
    _check_addresses(place, num_blocks, tensor, result)
    return result


def _check_inside(place: LayerPlacement, strided: StridedView, num_elements: int) -> None:
    last = max(
        offset + sum((size - 1) * stride for size, stride in zip(shape, strided.strides, strict=True))
        for offset, shape in (
            (strided.key_offset, strided.key_shape),
            (strided.value_offset, strided.value_shape),
        )
    )
    if last >= num_elements:
        raise InvariantError(
            f"the view of {place.layer_name} ends at element {last}, its tensor {place.tensor_index} has {num_elements}"
        )


def _check_addresses(place: LayerPlacement, num_blocks: int, tensor: torch.Tensor, found: KVCacheView) -> None:
    """The first and the last token, and a block's border, lie where `slot_bytes` says."""
    block_size = place.spec.block_size
    for slot in {0, block_size - 1, block_size * (num_blocks - 1), block_size * num_blocks - 1}:
        block, offset = divmod(slot, block_size)
        start, stop = slot_bytes(place, slot)
        first = found.key[block, offset, 0].data_ptr() - tensor.data_ptr()
        lasts = (found.key[block, offset, -1], found.value[block, offset, -1])
        end = max(last.data_ptr() + last.nbytes for last in lasts) - tensor.data_ptr()
        if (first, end) != (start, stop):
            raise InvariantError(
                f"slot {slot} of {place.layer_name} is viewed at bytes {first} to {end} of tensor "
                f"{place.tensor_index}, the layout says {start} to {stop}"
            )


def _refuse_names(planned: set[str], loaded: set[str]) -> None:
    missing, extra = sorted(planned - loaded), sorted(loaded - planned)
    if not missing and not extra:
        return
    told = [f"the plan has {', '.join(missing)} and the model does not"] if missing else []
    told += [f"the model has {', '.join(extra)} and the plan does not"] if extra else []
    raise BindError(
        f"The loaded model's attention layers are not those of the plan: {'; '.join(told)}.",
        remedy="Plan again from the model that is loaded.",
        missing=missing,
        extra=extra,
    )


def _refuse_kind(layer: CacheLayer, place: LayerPlacement) -> None:
    if _kind_of(layer.spec) is not _kind_of(place.spec):
        raise BindError(
            f"{layer.name} is of kind {layer.spec.kind} in the model and of kind {place.spec.kind} in the plan.",
            remedy="Plan again from the model that is loaded.",
        )


def _refuse_target(layer: CacheLayer, target: str | None, placed: Mapping[str, LayerPlacement]) -> None:
    if layer.kv_sharing_target != target:
        raise BindError(
            f"Attention layer {layer.name} reads the cache of {layer.kv_sharing_target or 'its own'} in the model, and "
            f"of {target or 'its own'} in the plan.",
            remedy="Plan again from the model that is loaded.",
        )
    if target is not None and target not in placed:
        raise BindError(
            f"Attention layer {layer.name} reads the cache of {target}, which keeps none.",
            remedy="Plan again from the model that is loaded.",
        )


def _refuse_shape(layer: AttentionLayer, place: LayerPlacement, found: KVCacheView, num_blocks: int) -> None:
    spec, planned = layer.spec, place.spec
    lengthened = planned.block_size % spec.block_size == 0
    block_size = planned.block_size if lengthened else spec.block_size
    needs = strided_view(msgspec.structs.replace(spec, block_size=block_size), num_blocks)
    wanted = (needs.key_shape, needs.value_shape, getattr(torch, needs.dtype), needs.value_offset - needs.key_offset)
    distance = found.value.storage_offset() - found.key.storage_offset()
    given = (tuple(found.key.shape), tuple(found.value.shape), found.key.dtype, distance)
    if wanted != given:
        raise BindError(
            f"Attention layer {layer.name} needs K {wanted[0]} and V {wanted[1]} of {wanted[2]}, V {wanted[3]} "
            f"elements behind K, and its view has K {given[0]} and V {given[1]} of {given[2]}, V {given[3]} behind K.",
            remedy="Plan again from the model that is loaded.",
        )
    window, planned_window = getattr(spec, "window", None), getattr(planned, "window", None)
    if planned_window is not None and window != planned_window:
        raise BindError(
            f"Attention layer {layer.name} has a window of {window} tokens in the model and of {planned_window} in the "
            f"plan, which keeps no more.",
            remedy="Plan again from the model that is loaded.",
        )


class _Kind(NamedTuple):
    """How layers that keep one kind of thing are viewed, checked and grouped."""

    view: Callable[[LayerPlacement, int, torch.Tensor], CacheView]
    refuse: Callable[[Any, LayerPlacement, Any, int], None]
    make_group: Callable[[int, Any], CacheGroup]


_TOKENS = _Kind(_view_layer, _refuse_shape, lambda index, spec: AttentionGroup(index, spec.block_size))
_STATES = _Kind(view_states, refuse_states, make_state_group)

_KINDS: dict[type[KVCacheSpec], _Kind] = {MambaSpec: _STATES}
"""By spec; all others keep tokens."""


def _kind_of(spec: KVCacheSpec) -> _Kind:
    return _KINDS.get(type(spec), _TOKENS)
