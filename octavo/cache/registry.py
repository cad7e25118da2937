"""Which manager serves which kind of spec: the only place in the cache that tells kinds apart."""

from __future__ import annotations

from collections.abc import Callable

from octavo.cache.chunked_local import ChunkedLocalManager
from octavo.cache.full_attention import FullAttentionManager
from octavo.cache.group_manager import GroupManager
from octavo.cache.mamba import mamba_manager
from octavo.cache.sliding_window import SlidingWindowManager
from octavo.errors import UnsupportedModelError
from octavo.kv.base import KVCacheSpec
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    RetainedWindowSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

MANAGERS: dict[type[KVCacheSpec], Callable[..., GroupManager]] = {
    FullAttentionSpec: FullAttentionManager,
    SinkFullAttentionSpec: FullAttentionManager,
    RetainedWindowSpec: FullAttentionManager,
    MLASpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalSpec: ChunkedLocalManager,
    MambaSpec: mamba_manager,
}


def make_group_manager(spec: LayerSpec, *, max_model_len: int, max_chunk_tokens: int) -> GroupManager:
    """The manager of a group of `spec`. Raises `UnsupportedModelError` for a kind that has none."""
    try:
        kind = MANAGERS[type(spec)]
    except KeyError:
        raise UnsupportedModelError(
            f"No cache manager serves {spec.kind} layers ({type(spec).__name__}).",
            remedy="Served kinds: " + ", ".join(sorted(known.__name__ for known in MANAGERS)) + ".",
        ) from None
    return kind(spec, max_model_len=max_model_len, max_chunk_tokens=max_chunk_tokens)
