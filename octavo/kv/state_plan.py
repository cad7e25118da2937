"""What a plan decides about states: whether prefixes can be reused through them, and which blocks go with them.

The state of a layer takes as much as some hundred tokens of an attention layer, and all pages must be of one size. So
blocks of tokens are lengthened, by a whole factor, until their page holds a state; padding a page of 16 tokens to the
size of a state instead would waste most of the cache. States are then kept at the borders of those longer blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from octavo.kv.base import ceil_div, dtype_bytes
from octavo.kv.specs import LayerSpec, MambaSpec


def plan_states(
    specs_by_rank: Sequence[Mapping[str, LayerSpec]], *, reference: bool, enable_prefix_caching: bool
) -> list[Mapping[str, LayerSpec]]:
    """`specs_by_rank` with every `auto` of a state's cache mode decided; the same where there is none.

    `reference` takes the reference engine's default, one state for each request, and leaves blocks as they are.
    """
    layers = [spec for specs in specs_by_rank for spec in specs.values()]
    states = [spec for spec in layers if isinstance(spec, MambaSpec) and spec.cache_mode == "auto"]
    if not states:
        return list(specs_by_rank)
    if reference:
        return [{name: _with_mode(spec, "none") for name, spec in specs.items()} for specs in specs_by_rank]
    mode = "align" if enable_prefix_caching and all(spec.prefix_cacheable for spec in layers) else "none"
    page = max(_whole_page(state) for state in states)
    planned = [
        {name: _with_mode(_lengthened(spec, page), mode) for name, spec in specs.items()} for specs in specs_by_rank
    ]
    sizes = [spec.block_size for specs in planned for spec in specs.values() if not isinstance(spec, MambaSpec)]
    size = math.lcm(*sizes) if sizes else None
    return [{name: _at_borders(spec, size) for name, spec in specs.items()} for specs in planned]


def _whole_page(spec: MambaSpec) -> int:
    """Bytes of a page that holds the state and whole elements of each of its dtypes."""
    element = max(dtype_bytes(dtype) for dtype in spec.dtypes)
    return ceil_div(spec.content_bytes, element) * element


def _lengthened(spec: LayerSpec, page: int) -> LayerSpec:
    if isinstance(spec, MambaSpec):
        return msgspec.structs.replace(spec, page_size_padded=None if page == spec.content_bytes else page)
    if spec.page_size_padded is not None:
        return spec
    return msgspec.structs.replace(spec, block_size=spec.block_size * ceil_div(page, spec.page_bytes))


def _with_mode(spec: LayerSpec, mode: str) -> LayerSpec:
    if not isinstance(spec, MambaSpec) or spec.cache_mode != "auto":
        return spec
    return msgspec.structs.replace(spec, cache_mode=mode)


def _at_borders(spec: LayerSpec, block_size: int | None) -> LayerSpec:
    if not isinstance(spec, MambaSpec) or block_size is None:
        return spec
    return msgspec.structs.replace(spec, block_size=block_size)
