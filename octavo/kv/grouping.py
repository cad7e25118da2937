"""Which layers share a block table: from the layers' specs to the foldings among which the planner chooses.

Blocks of all groups come from one pool, so a block must take the same bytes whichever group it belongs to. Layers are
gathered into **buckets** of equal specs with one common page size, and each bucket is cut into some number of groups;
a block then costs the widest group's pages, and a narrower group wastes the difference. A choice of how many groups
each bucket makes is a `Fold`. Two simpler cases need no choice: layers that all merge into one spec, and layers of one
kind whose pages differ (one group, each layer with a page of its own size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from octavo.errors import LayoutError
from octavo.kv.base import ceil_div
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)

BlocksOf = Callable[[LayerSpec], int]
"""The most blocks that one request can hold of a layer's group."""


class Bucket(NamedTuple):
    """Layers that may lie in one group: of equal spec, or (`layer_specs`) of one kind with pages of their own."""

    spec: LayerSpec
    names: tuple[str, ...]
    layer_specs: tuple[LayerSpec, ...] | None = None


class Fold(NamedTuple):
    """Buckets, into how many groups each is cut, and what one block of that costs."""

    buckets: tuple[Bucket, ...]
    num_groups: tuple[int, ...]
    bytes_per_block: tuple[int, ...]
    """By stage: the widest group's pages there; 0 where a stage holds no cached layer."""

    def blocks_per_request(self, blocks_of: BlocksOf) -> int:
        """The most blocks one request can hold, over all groups."""
        return sum(count * blocks_of(bucket.spec) for bucket, count in zip(self.buckets, self.num_groups, strict=True))

    def groups(self) -> tuple[KVCacheGroupSpec, ...]:
        """The groups over all stages. Group i of k takes every k-th layer, so that pipeline stages stay balanced."""
        return tuple(
            KVCacheGroupSpec(layer_names=bucket.names[i::count], spec=bucket.spec, layer_specs=bucket.layer_specs)
            for bucket, count in zip(self.buckets, self.num_groups, strict=True)
            for i in range(count)
        )


class Stages(NamedTuple):
    """The distinct sets of layers that ranks hold (tensor-parallel ranks hold the same), in rank order."""

    names: tuple[frozenset[str], ...]
    of_rank: tuple[int, ...]

    @classmethod
    def of(cls, specs_by_rank: Sequence[Mapping[str, LayerSpec]]) -> Stages:
        index: dict[frozenset[str], int] = {}
        of_rank = tuple(index.setdefault(frozenset(specs), len(index)) for specs in specs_by_rank)
        return cls(tuple(index), of_rank)


def foldings(layers: Mapping[str, LayerSpec], stages: Stages, *, hybrid: bool, reference: bool) -> list[Fold]:
    """The foldings to choose from, of at least one layer: only the reference's own where `reference`.

    The reference's folding is always among them. `hybrid` off plans windowed layers as full ones wherever both occur.
    Raises `LayoutError` where the layers cannot live in one pool.
    """
    if not hybrid:
        layers = without_windows(layers)
        if _one_group(layers) is None:
            kinds = ", ".join(sorted({spec.kind for spec in layers.values()}))
            raise LayoutError(
                f"The hybrid KV cache manager is switched off, and layers of the kinds {kinds} do not fit one group.",
                remedy="Leave the hybrid KV cache manager on for this model.",
            )
    bucket = _one_group(layers)
    if bucket is not None:
        return [_fold((bucket,), (1,), stages)]
    if not pages_unify(layers):
        whole = _whole(layers)
        if reference and whole is None:
            raise LayoutError(
                "The pages of multi-head latent attention do not divide the largest page "
                f"({max(spec.page_bytes for spec in layers.values())} bytes), and this grouping does not pad them.",
                remedy="Use the fewest-bytes grouping, or block sizes whose pages divide each other.",
            )
        folds = [_fold((whole,), (1,), stages)] if whole is not None else []
        if reference:
            return folds
    else:
        folds = []
    buckets = bucket_layers(unify_pages(layers))
    counts = [_reference_counts(buckets)] if reference else _all_counts(buckets, stages)
    return folds + [_fold(buckets, count, stages) for count in counts]


def merge_specs(specs: Iterable[LayerSpec]) -> LayerSpec | None:
    """The one spec that stands for all of `specs`, or None where their layers are not alike.

    Alike means equal, except that layers of full attention may differ in the window or chunk they compute with, as
    long as no two of them have a different one.
    """
    distinct = list(dict.fromkeys(specs))
    if len(distinct) == 1:
        return distinct[0]
    bare, notes = set(), set()
    for spec in distinct:
        if not isinstance(spec, FullAttentionSpec):
            return None
        bare.add(msgspec.structs.replace(spec, compute_window=None, compute_chunk=None))
        notes.add((spec.compute_window, spec.compute_chunk))
    notes.discard((None, None))
    if len(bare) > 1 or len(notes) > 1:
        return None
    window, chunk = notes.pop() if notes else (None, None)
    return msgspec.structs.replace(bare.pop(), compute_window=window, compute_chunk=chunk)


def without_windows(layers: Mapping[str, LayerSpec]) -> Mapping[str, LayerSpec]:
    """`layers` with windowed and chunked ones planned as full attention, where layers that keep every token occur.

    Computation stays as it is; the promoted layers take the block size of the full ones, where these have only one.
    """
    block_sizes = {spec.block_size for spec in layers.values() if spec.keeps_every_token}
    if not block_sizes:
        return layers
    common = block_sizes.pop() if len(block_sizes) == 1 else None
    return {name: _without_window(spec, common or spec.block_size) for name, spec in layers.items()}


def pages_unify(layers: Mapping[str, LayerSpec]) -> bool:
    """Whether the reference can give the layers one page size: it pads no page of latent attention."""
    page = max(spec.page_bytes for spec in layers.values())
    return all(page % spec.page_bytes == 0 for spec in layers.values() if isinstance(spec, MLASpec))


def unify_pages(layers: Mapping[str, LayerSpec]) -> Mapping[str, LayerSpec]:
    """`layers` with one common page size, the largest: by more tokens per block where that divides, else by padding."""
    page = max(spec.page_bytes for spec in layers.values())
    unified: dict[str, LayerSpec] = {}
    for name, spec in layers.items():
        if spec.page_bytes == page:
            unified[name] = spec
        elif not isinstance(spec, MambaSpec) and page % spec.page_bytes == 0 and spec.page_size_padded is None:
            unified[name] = msgspec.structs.replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
        else:
            unified[name] = msgspec.structs.replace(spec, page_size_padded=page)
    return unified


def bucket_layers(layers: Mapping[str, LayerSpec]) -> tuple[Bucket, ...]:
    """Layers gathered by equal spec in first-seen order; buckets whose specs merge become one."""
    equal: dict[LayerSpec, list[str]] = {}
    for name, spec in layers.items():
        equal.setdefault(spec, []).append(name)
    merged: list[tuple[LayerSpec, list[str]]] = []
    for spec, names in equal.items():
        for i, (other, other_names) in enumerate(merged):
            both = merge_specs((other, spec))
            if both is not None:
                merged[i] = (both, other_names + names)
                break
        else:
            merged.append((spec, names))
    return tuple(Bucket(spec, tuple(names)) for spec, names in merged)


def _one_group(layers: Mapping[str, LayerSpec]) -> Bucket | None:
    """All layers as one bucket: merged, or of one kind with pages of their own; None where they differ more."""
    specs, names = tuple(layers.values()), tuple(layers)
    merged = merge_specs(specs)
    if merged is not None:
        return Bucket(merged, names)
    if len({spec.uniform_key for spec in specs}) == 1:
        return Bucket(specs[0], names, specs)
    return None


def _whole(layers: Mapping[str, LayerSpec]) -> Bucket | None:
    """One group of all layers, each with a page of its own and without padding, if sliding windows kept every token.

    None where attention chunks would have to be promoted too, or the kinds differ even so.
    """
    if any(isinstance(spec, ChunkedLocalSpec) for spec in layers.values()):
        return None
    return _one_group(without_windows(layers))


def _without_window(spec: LayerSpec, block_size: int) -> LayerSpec:
    if not isinstance(spec, SlidingWindowSpec | ChunkedLocalSpec):
        return spec
    padded = spec.page_size_padded
    return FullAttentionSpec(
        block_size=block_size,
        page_size_padded=None if padded is None else max(padded, block_size * spec.token_bytes),
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
        dtype=spec.dtype,
        scale_bytes=spec.scale_bytes,
        packed_head_bytes=spec.packed_head_bytes,
        quantization=spec.quantization,
        compute_window=spec.window if isinstance(spec, SlidingWindowSpec) else None,
        compute_chunk=spec.chunk if isinstance(spec, ChunkedLocalSpec) else None,
    )


def _reference_counts(buckets: Sequence[Bucket]) -> tuple[int, ...]:
    """The reference's heuristic: groups as wide as the smallest bucket, or as the largest if that is not much more."""
    sizes = [len(bucket.names) for bucket in buckets]
    smallest, largest = min(sizes), max(sizes)
    width = largest if largest < 1.5 * smallest else smallest
    return tuple(ceil_div(size, width) for size in sizes)


def _all_counts(buckets: Sequence[Bucket], stages: Stages) -> list[tuple[int, ...]]:
    """One candidate for every group width, less those that another beats whatever the lengths; the reference's stays.

    Candidate x beats y when, for every bucket and on every stage, its groups together cost no more bytes per block
    of each, and it makes no more groups.
    """
    sizes = [len(bucket.names) for bucket in buckets]
    counts = dict.fromkeys(
        tuple(ceil_div(size, width) for size in sizes) for width in range(max(sizes), 0, -1)
    )  # From few groups to many: of equal candidates the first stays.
    page = buckets[0].spec.page_bytes
    width_of: dict[tuple[int, int], tuple[int, ...]] = {}
    costs: list[tuple[tuple[int, ...], list[int]]] = []
    for count in counts:
        widths = [
            width_of[i, k] if (i, k) in width_of else width_of.setdefault((i, k), _widths(buckets[i], k, stages))
            for i, k in enumerate(count)
        ]
        blocks = [page * max(by_bucket) for by_bucket in zip(*widths, strict=True)]
        cost = [bytes_per_block * k for bytes_per_block in blocks for k in count]
        if not any(all(a <= b for a, b in zip(other, cost, strict=True)) for _, other in costs):
            costs.append((count, cost))
    reference = _reference_counts(buckets)
    return [count for count, _ in costs] + ([] if any(count == reference for count, _ in costs) else [reference])


def _widths(bucket: Bucket, num_groups: int, stages: Stages) -> tuple[int, ...]:
    """By stage, the most layers of one group that lie there when `bucket` is cut into `num_groups`."""
    if len(stages.names) == 1:
        return (ceil_div(len(bucket.names), num_groups),)
    widths = []
    for names in stages.names:
        here = [name in names for name in bucket.names]
        widths.append(max(sum(here[i::num_groups]) for i in range(num_groups)))
    return tuple(widths)


def _fold(buckets: tuple[Bucket, ...], num_groups: tuple[int, ...], stages: Stages) -> Fold:
    first = buckets[0]
    if first.layer_specs is not None:
        pages = dict(zip(first.names, (spec.page_bytes for spec in first.layer_specs), strict=True))
        return Fold(buckets, num_groups, tuple(sum(pages[name] for name in names) for names in stages.names))
    widths = [_widths(bucket, count, stages) for bucket, count in zip(buckets, num_groups, strict=True)]
    return Fold(
        buckets, num_groups, tuple(first.spec.page_bytes * max(by_bucket) for by_bucket in zip(*widths, strict=True))
    )
