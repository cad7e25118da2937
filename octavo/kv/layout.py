"""Where a token lies: the tensors of a plan, and from them slots, byte ranges and strides. Pure arithmetic.

position p of a request -> block p // block_size of its table -> slot = block_id * block_size + p % block_size
slot of a layer         -> bytes block_id * page_bytes + offset * token_bytes of the layer's tensor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo.errors import LayoutError
from octavo.kv.base import KVCacheSpec, dtype_bytes
from octavo.kv.specs import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    LayerSpec,
    MambaSpec,
)


class LayerPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """One cached layer's place in a plan."""

    layer_name: str
    group_index: int
    slot_index: int
    """Place in its group."""
    tensor_index: int
    """Number of its tensor in the config."""
    spec: LayerSpec


class StridedView(msgspec.Struct, frozen=True, kw_only=True):
    """Shape, strides and storage offset of K and V of one layer in its tensor, in elements of `dtype`.

    K is [num_blocks, block_size, num_kv_heads, head_size], V the same with `head_size_v`. V of a latent lies inside K:
    both begin at the same element.
    """

    key_shape: tuple[int, int, int, int]
    value_shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    """The same for both: V lies behind K of the same token and head, or inside it."""
    key_offset: int
    value_offset: int
    dtype: str


def rank_groups(groups: Sequence[KVCacheGroupSpec], specs: Mapping[str, LayerSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """`groups` as a rank sees them that holds the layers of `specs`: as many, some perhaps empty."""
    own = []
    for group in groups:
        held = [i for i, name in enumerate(group.layer_names) if name in specs]
        own.append(
            KVCacheGroupSpec(
                layer_names=tuple(group.layer_names[i] for i in held),
                spec=group.spec,
                layer_specs=None if group.layer_specs is None else tuple(group.layer_specs[i] for i in held),
            )
        )
    return tuple(own)


def pool_tensors(
    groups: Sequence[KVCacheGroupSpec], num_blocks: int, *, equal_side_by_side: bool
) -> tuple[KVCacheTensor, ...]:
    """One tensor for each slot index, shared by that layer of every group.

    A group with pages of different sizes is alone, and its tensors differ in size: in the order of its layers, or
    with layers of equal spec side by side, as the reference lays them.
    """
    if groups[0].layer_specs is not None:
        specs = dict(zip(groups[0].layer_names, groups[0].layer_specs, strict=True))
        names = list(specs)
        if equal_side_by_side:
            first_seen = {spec: i for i, spec in enumerate(dict.fromkeys(specs.values()))}
            names.sort(key=lambda name: first_seen[specs[name]])
        return tuple(KVCacheTensor(size_bytes=specs[name].page_bytes * num_blocks, shared_by=(name,)) for name in names)
    return tuple(
        KVCacheTensor(
            size_bytes=groups[0].spec.page_bytes * num_blocks,
            shared_by=tuple(group.layer_names[i] for group in groups if i < len(group.layer_names)),
        )
        for i in range(max(len(group.layer_names) for group in groups))
    )


def placements(config: KVCacheConfig) -> dict[str, LayerPlacement]:
    """Every cached layer's place, by name, in the order of groups. Sharing layers have none: see `shared_layers`."""
    tensor_of = {name: i for i, tensor in enumerate(config.tensors) for name in tensor.shared_by}
    return {
        name: LayerPlacement(
            layer_name=name,
            group_index=group_index,
            slot_index=slot_index,
            tensor_index=tensor_of[name],
            spec=group.spec if group.layer_specs is None else group.layer_specs[slot_index],
        )
        for group_index, group in enumerate(config.groups)
        for slot_index, name in enumerate(group.layer_names)
    }


def slot_of(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """The slot of `position` in a request whose table in the layer's group is `block_ids`."""
    return block_ids[position // block_size] * block_size + position % block_size


def slot_bytes(placement: LayerPlacement, slot: int) -> tuple[int, int]:
    """(start, stop): the bytes of one token's K and V, all heads, in the layer's tensor.

    Raises `LayoutError` for a layer that keeps a state instead of tokens: ask `page_bytes_of` for its block.
    """
    spec = placement.spec
    if isinstance(spec, MambaSpec):
        raise LayoutError(
            f"Layer {placement.layer_name} keeps one state per block and has no slots.",
            remedy="Ask for the bytes of a block instead.",
        )
    block_id, offset = divmod(slot, spec.block_size)
    start = block_id * spec.page_bytes + offset * spec.token_bytes
    return start, start + spec.token_bytes


def block_bytes(placement: LayerPlacement, block_id: int) -> tuple[int, int]:
    """(start, stop): the bytes of one block's page in the layer's tensor, padding left out."""
    start = block_id * placement.spec.page_bytes
    return start, start + placement.spec.content_bytes


def strided_view(spec: KVCacheSpec, num_blocks: int) -> StridedView:
    """K and V of a layer as views of its tensor, taken as elements of the layer's dtype.

    Raises `LayoutError` for a layer without plain K and V, and for pages that do not hold whole elements.
    """
    vectors = spec.token_vectors
    if vectors is None:
        raise LayoutError(
            f"A layer of kind {spec.kind} in this format has no plain K and V to view.",
            remedy="Use an unquantised cache dtype.",
        )
    itemsize = dtype_bytes(vectors.dtype)
    if spec.page_bytes % itemsize:
        raise LayoutError(
            f"A page of {spec.page_bytes} bytes does not hold whole elements of {vectors.dtype} ({itemsize} bytes).",
            remedy="Pad pages to a multiple of the largest element.",
        )
    shape = (num_blocks, spec.block_size, vectors.num_heads)
    token_elements = vectors.num_heads * vectors.head_elements
    return StridedView(
        key_shape=(*shape, vectors.key_size),
        value_shape=(*shape, vectors.value_size),
        strides=(spec.page_bytes // itemsize, token_elements, vectors.head_elements, 1),
        key_offset=0,
        value_offset=vectors.value_offset,
        dtype=vectors.dtype,
    )
