"""Hypothesis strategies that more than one test file uses. Sizes are small, so that borders are met often."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)

KINDS = ("full", "sliding_window", "chunked_local", "mla", "mamba")


@st.composite
def layer_specs(draw: st.DrawFn, *, kinds: tuple[str, ...] = KINDS, block_size: int | None = None) -> LayerSpec:
    """What one layer keeps. Pages of different specs are sometimes equal, sometimes multiples, sometimes neither."""
    kind = draw(st.sampled_from(kinds))
    size = block_size or draw(st.sampled_from([1, 4, 16, 16, 16, 32]))
    dtype = draw(st.sampled_from(["bfloat16", "float32", "float16"]))
    if kind == "mla":
        latent_size = draw(st.sampled_from([24, 64, 72]))
        value_size = draw(st.sampled_from([None, 16]))
        return MLASpec(block_size=size, latent_size=latent_size, value_size=value_size, dtype=dtype)
    if kind == "mamba":
        shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 300)), min_size=1, max_size=2))
        return MambaSpec(
            block_size=draw(st.sampled_from([size, 512])),
            shapes=tuple(shapes),
            dtypes=(dtype,) * len(shapes),
            cache_mode=draw(st.sampled_from(["none", "align"])),
            num_speculative_blocks=draw(st.integers(0, 2)),
        )
    common: dict[str, Any] = {
        "block_size": size,
        "num_kv_heads": draw(st.integers(1, 3)),
        "head_size": draw(st.sampled_from([4, 6, 8])),
        "head_size_v": draw(st.sampled_from([None, None, 4])),
        "dtype": dtype,
    }
    if kind == "sliding_window":
        return SlidingWindowSpec(**common, window=draw(st.integers(1, 200)))
    if kind == "chunked_local":
        return ChunkedLocalSpec(**common, chunk=size * draw(st.integers(1, 20)))
    return FullAttentionSpec(**common)


@st.composite
def models(
    draw: st.DrawFn, *, kinds: tuple[str, ...] = KINDS, max_layers: int = 24, max_stages: int = 3
) -> list[dict[str, LayerSpec]]:
    """Specs by rank: a few kinds of layers in any order, cut into pipeline stages, of which some may be empty."""
    palette = draw(st.lists(layer_specs(kinds=kinds), min_size=1, max_size=4))
    layers = draw(st.lists(st.sampled_from(palette), min_size=1, max_size=max_layers))
    cuts = draw(st.lists(st.integers(0, len(layers)), max_size=max_stages - 1))
    borders = [0, *sorted(cuts), len(layers)]
    return [{f"layers.{i}": layers[i] for i in range(start, stop)} for start, stop in itertools.pairwise(borders)]


@st.composite
def cache_groups(draw: st.DrawFn) -> list[LayerSpec]:
    """Groups as a cache manager serves them: one to three, of full, windowed and chunked kinds, with small blocks."""
    size = draw(st.sampled_from([1, 2, 3, 4]))
    groups: list[LayerSpec] = []
    for kind in draw(st.lists(st.sampled_from(["full", "sliding_window", "chunked_local"]), min_size=1, max_size=3)):
        block_size = size * draw(st.sampled_from([1, 1, 1, 2, 3]))
        common: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float16"}
        if kind == "sliding_window":
            groups.append(SlidingWindowSpec(**common, window=draw(st.integers(1, 14))))
        elif kind == "chunked_local":
            groups.append(ChunkedLocalSpec(**common, chunk=draw(st.integers(1, 14))))
        else:
            groups.append(FullAttentionSpec(**common))
    return groups
