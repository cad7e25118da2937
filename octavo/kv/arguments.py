"""What a plan is asked with, checked before any planning: ranks, numbers, specs, sharing layers, memory layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from octavo.errors import ConfigError, LayoutError
from octavo.kv.specs import KVCacheGroupSpec, LayerSpec

LAYOUTS = {"LBNHC": True, "NHD": True, "LBHNC": True, "HND": True, "LHBNC": False}
"""Memory layouts with the layer outermost, by the order of layer, block, head, token (N) and content; True where a
page is one byte range. NHD and HND are other names of the lines they follow."""

OWN_LAYOUTS = ("LBNHC", "NHD")
"""The layout that Octavo's tensors have, by both of its names."""


def check_numbers(numbers: Mapping[str, int | None]) -> None:
    """Raise `ConfigError` unless every number that is given is at least 1."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}.", remedy="It must be at least 1.")


def check_ranks(specs_by_rank: Sequence[Mapping[str, LayerSpec]], available_bytes: Sequence[int]) -> None:
    """Raise `ConfigError` unless there are ranks, each with its bytes, and specs describe pages that can exist."""
    if not specs_by_rank or len(specs_by_rank) != len(available_bytes):
        raise ConfigError(
            f"A plan needs specs and bytes for every rank, but there are {len(specs_by_rank)} and "
            f"{len(available_bytes)}.",
            remedy="Give one mapping of specs and one number of bytes for each rank.",
        )
    distinct = {spec: name for specs in specs_by_rank for name, spec in specs.items()}
    for spec, name in distinct.items():
        if spec.block_size < 1 or spec.content_bytes < 1 or spec.page_bytes < spec.content_bytes:
            raise ConfigError(
                f"Layer {name} has {spec.block_size} tokens per block, {spec.content_bytes} bytes of content and pages "
                f"of {spec.page_bytes} bytes.",
                remedy="Blocks and contents must be positive, and a page at least as large as its content.",
            )


def spread(specs: Mapping[str, LayerSpec], context_parallel_size: int) -> Mapping[str, LayerSpec]:
    """`specs` with the tokens of kinds that keep every token spread over `context_parallel_size` ranks."""
    if context_parallel_size == 1:
        return specs
    return {
        name: msgspec.structs.replace(spec, context_parallel_size=context_parallel_size)
        if spec.keeps_every_token
        else spec
        for name, spec in specs.items()
    }


def all_layers(specs_by_rank: Sequence[Mapping[str, LayerSpec]]) -> dict[str, LayerSpec]:
    """The layers of all ranks in rank order. Raises `LayoutError` where two ranks disagree about one layer."""
    layers: dict[str, LayerSpec] = {}
    for rank, specs in enumerate(specs_by_rank):
        for name, spec in specs.items():
            if layers.setdefault(name, spec) != spec:
                raise LayoutError(
                    f"Layer {name} caches something else on rank {rank} than on a rank before it.",
                    remedy="Give every rank that holds a layer the same spec for it.",
                )
    return layers


def check_shared(shared_by_rank: Sequence[Mapping[str, str]], specs_by_rank: Sequence[Mapping[str, LayerSpec]]) -> None:
    """Raise `LayoutError` unless every sharing layer reads a cached layer of its own rank and has no cache itself."""
    for rank, (shared, specs) in enumerate(zip(shared_by_rank, specs_by_rank, strict=True)):
        for name, target in shared.items():
            if name in specs or target not in specs:
                what = "has a cache of its own" if name in specs else f"reads the cache of {target}, which has none"
                raise LayoutError(
                    f"Layer {name} {what} on rank {rank}.",
                    remedy="Let a sharing layer name a cached layer of its own rank, and report no spec for it.",
                )


def check_layout(layout: str, *, reference: bool) -> None:
    """Raise `LayoutError` for a layout that is not planned; the reference plans more of them than Octavo."""
    if layout not in (LAYOUTS if reference else OWN_LAYOUTS):
        raise LayoutError(
            f"Octavo does not plan the memory layout {layout!r}.", remedy="Use LBNHC: pages by layer and block."
        )


def check_pages(layout: str, groups: Iterable[KVCacheGroupSpec]) -> None:
    """Raise `LayoutError` where a layout that scatters a page cannot hold one rank's pages of several sizes."""
    pages = {spec.page_bytes for group in groups if group.layer_names for spec in group.layer_specs or (group.spec,)}
    if len(pages) > 1 and not LAYOUTS[layout]:
        raise LayoutError(
            f"The memory layout {layout} keeps the blocks of a head together and cannot hold pages of "
            f"{', '.join(map(str, sorted(pages)))} bytes side by side.",
            remedy="Use LBNHC: pages by layer and block.",
        )
