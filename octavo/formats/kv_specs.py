"""From what a model's files say to what each layer keeps in one rank's cache."""

from __future__ import annotations

from typing import Any

from octavo.config import LayerConfig, ModelConfig, layer_name, state_name
from octavo.errors import ConfigError
from octavo.kv.specs import ChunkedLocalSpec, FullAttentionSpec, LayerSpec, MambaSpec, MLASpec, SlidingWindowSpec


def kv_cache_specs(
    model_config: ModelConfig, *, block_size: int, dtype: str, tensor_parallel_size: int = 1
) -> tuple[dict[str, LayerSpec], dict[str, str]]:
    """(specs by layer name, layers that read another layer's cache -> that layer), for one tensor-parallel rank.

    KV heads per rank are `max(1, num_kv_heads // tensor_parallel_size)`: a head is replicated when there are more ranks
    than heads. Latent (MLA) vectors and recurrent states are whole on every rank. A layer that keeps nothing has no
    spec.
    Raises `ConfigError` when the heads cannot be divided evenly over the ranks.
    """
    specs: dict[str, LayerSpec] = {}
    shared: dict[str, str] = {}
    for index, layer in enumerate(model_config.layers):
        if layer.kv_sharing_target is not None:
            shared[layer_name(index)] = layer_name(layer.kv_sharing_target)
        elif layer.kind not in ("none", "mamba"):
            specs[layer_name(index)] = _layer_spec(layer, block_size, dtype, tensor_parallel_size)
        if layer.state_shapes:
            name = state_name(index, layer)
            specs[name] = state_spec(layer, block_size=block_size, dtype=dtype)
    return specs, shared


def _layer_spec(layer: LayerConfig, block_size: int, dtype: str, num_ranks: int) -> LayerSpec:
    if layer.kind == "mla":
        return MLASpec(block_size=block_size, latent_size=layer.head_size, value_size=layer.head_size_v, dtype=dtype)
    sizes: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": kv_heads_per_rank(layer.num_kv_heads, num_ranks),
        "head_size": layer.head_size,
        "head_size_v": layer.head_size_v,
        "dtype": dtype,
    }
    if layer.kind == "sliding_window" and layer.window is not None:
        return SlidingWindowSpec(**sizes, window=layer.window)
    if layer.kind == "chunked_local" and layer.chunk is not None:
        return ChunkedLocalSpec(**sizes, chunk=layer.chunk)
    return FullAttentionSpec(**sizes)


def kv_heads_per_rank(num_kv_heads: int, num_ranks: int) -> int:
    """KV heads that one rank keeps. Raises `ConfigError` when neither number divides the other."""
    if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
        raise ConfigError(
            f"--tensor-parallel-size is {num_ranks}, but a layer has {num_kv_heads} KV heads.",
            remedy="Choose a size that divides the number of KV heads, or a multiple of it.",
        )
    return max(1, num_kv_heads // num_ranks)


def state_spec(layer: LayerConfig, *, block_size: int, dtype: str) -> MambaSpec:
    """What `layer`'s state takes, where the cache has `dtype`. Which of its modes it is kept in, the plan decides."""
    dtypes = tuple(dtype if state_dtype == "auto" else state_dtype for state_dtype in layer.state_dtypes)
    return MambaSpec(block_size=block_size, shapes=layer.state_shapes, dtypes=dtypes, cache_mode="auto")
