from __future__ import annotations

from typing import Any

import pytest

from octavo.config import LayerConfig, ModelConfig
from octavo.errors import ConfigError
from octavo.formats.kv_specs import kv_cache_specs, kv_heads_per_rank
from octavo.kv.specs import ChunkedLocalSpec, FullAttentionSpec, MambaSpec, MLASpec, SlidingWindowSpec


def model(*layers: LayerConfig) -> ModelConfig:
    return ModelConfig(
        name="toy", architecture="ToyForCausalLM", model_type="toy", dtype="bfloat16", num_layers=len(layers),
        hidden_size=64, num_heads=8, vocab_size=100, max_position=1024, layers=layers,
    )  # fmt: skip


SIZES: dict[str, Any] = {"num_kv_heads": 4, "head_size": 64}
PLAIN: dict[str, Any] = {"block_size": 16, "dtype": "float16", **SIZES}


def test_each_kind_has_its_spec() -> None:
    specs, shared = kv_cache_specs(
        model(
            LayerConfig(kind="full", head_size_v=32, **SIZES),
            LayerConfig(kind="sliding_window", window=7, **SIZES),
            LayerConfig(kind="chunked_local", chunk=9, **SIZES),
            LayerConfig(kind="mla", num_kv_heads=1, head_size=576, head_size_v=512),
            LayerConfig(kind="mamba", state_shapes=((3, 8), (2, 4)), state_dtypes=("auto", "float32")),
            LayerConfig(kind="none"),
            LayerConfig(kind="sliding_window", window=7, kv_sharing_target=1, **SIZES),
        ),
        block_size=16,
        dtype="float16",
    )
    assert specs == {
        "layers.0": FullAttentionSpec(head_size_v=32, **PLAIN),
        "layers.1": SlidingWindowSpec(window=7, **PLAIN),
        "layers.2": ChunkedLocalSpec(chunk=9, **PLAIN),
        "layers.3": MLASpec(block_size=16, latent_size=576, value_size=512, dtype="float16"),
        "layers.4": MambaSpec(block_size=16, shapes=((3, 8), (2, 4)), dtypes=("float16", "float32"), cache_mode="auto"),
    }
    assert shared == {"layers.6": "layers.1"}


@pytest.mark.parametrize(("heads", "ranks", "expected"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (1, 4, 1)])
def test_heads_are_divided_or_replicated(heads: int, ranks: int, expected: int) -> None:
    assert kv_heads_per_rank(heads, ranks) == expected
    layer = LayerConfig(num_kv_heads=heads, head_size=64)
    specs, _ = kv_cache_specs(model(layer), block_size=16, dtype="float16", tensor_parallel_size=ranks)
    assert specs["layers.0"].num_kv_heads == expected  # type: ignore[union-attr]


def test_a_latent_vector_is_whole_on_every_rank() -> None:
    layer = LayerConfig(kind="mla", num_kv_heads=1, head_size=576)
    specs, _ = kv_cache_specs(model(layer), block_size=64, dtype="bfloat16", tensor_parallel_size=8)
    assert specs["layers.0"] == MLASpec(block_size=64, latent_size=576, dtype="bfloat16")


def test_heads_that_do_not_divide_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size is 4, but a layer has 6 KV heads"):
        kv_heads_per_rank(6, 4)


def test_a_state_is_whole_on_every_rank() -> None:
    layer = LayerConfig(kind="mamba", state_shapes=((3, 8),), state_dtypes=("auto",))
    alone, _ = kv_cache_specs(model(layer), block_size=16, dtype="bfloat16")
    assert kv_cache_specs(model(layer), block_size=16, dtype="bfloat16", tensor_parallel_size=2)[0] == alone


def test_a_layer_with_attention_and_a_state_has_two_specs() -> None:
    layer = LayerConfig(kind="full", state_shapes=((3, 8),), state_dtypes=("auto",), **SIZES)
    specs, _ = kv_cache_specs(model(layer), block_size=16, dtype="float16")
    assert [(name, spec.kind) for name, spec in specs.items()] == [("layers.0", "full"), ("layers.0.state", "mamba")]
