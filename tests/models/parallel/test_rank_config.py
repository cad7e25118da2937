"""One rank's config: what is divided, and what is refused before anything is read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from octavo.config import LayerConfig, ModelConfig
from octavo.errors import UnsupportedModelError
from octavo.models.parallel.rank_config import (
    divided_fields,
    part_of,
    rank_fields,
    rank_model_config,
    scaled,
    with_fields,
)


def described(num_heads: int, *layers: LayerConfig) -> ModelConfig:
    return ModelConfig(
        name="toy",
        architecture="Toy",
        model_type="toy",
        dtype="float32",
        num_layers=len(layers),
        hidden_size=64,
        num_heads=num_heads,
        vocab_size=100,
        max_position=64,
        layers=layers,
    )


def test_heads_and_widths_are_found_under_whatever_name_the_config_has() -> None:
    config = LlamaConfig(num_attention_heads=6, num_key_value_heads=2, intermediate_size=10, hidden_size=48)
    assert divided_fields(config) == {
        "intermediate_size": "width",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
    }
    assert divided_fields(GPT2Config(n_head=4)) == {"n_head": "heads"}
    assert divided_fields(GPT2Config(n_head=4, n_inner=64)) == {"n_head": "heads", "n_inner": "width"}
    assert divided_fields(MixtralConfig())["intermediate_size"] == "width"


def test_a_rank_has_a_part_of_each_and_the_same_head_size() -> None:
    config = LlamaConfig(num_attention_heads=6, num_key_value_heads=2, intermediate_size=10, hidden_size=48)
    values = rank_fields(config, divided_fields(config), 6)
    assert values == {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 2}
    made = with_fields(config, values)
    assert (made.head_dim, made.num_attention_heads, made.hidden_size) == (8, 1, 48)
    assert config.num_attention_heads == 6


def test_a_number_for_each_layer_is_divided_by_layer() -> None:
    config = SimpleNamespace(intermediate_size=[6, 8])
    assert rank_fields(config, {"intermediate_size": "width"}, 4) == {"intermediate_size": [2, 2]}
    assert scaled([6, 8], 2) == [12, 16] and scaled(3, 2) == 6


def test_widths_are_rounded_up_and_kv_heads_never_below_one() -> None:
    assert [part_of("width", 10, 4), part_of("kv_heads", 2, 4), part_of("kv_heads", 8, 4), part_of("heads", 8, 4)] == [
        3,
        1,
        2,
        2,
    ]


def test_the_description_has_each_layers_part() -> None:
    layers = (LayerConfig(num_kv_heads=4, head_size=8), LayerConfig(num_kv_heads=1, head_size=16))
    made = rank_model_config(described(8, *layers), 2)
    assert made.num_heads == 4
    assert [layer.num_kv_heads for layer in made.layers] == [2, 1]
    assert rank_model_config(described(9, *layers), 1) == described(9, *layers)


def test_latents_and_states_are_whole_on_each_rank() -> None:
    layers = (
        LayerConfig(kind="mla", num_kv_heads=1, head_size=40),
        LayerConfig(kind="mamba"),
        LayerConfig(kind="none"),
    )
    assert rank_model_config(described(8, *layers), 4).layers == layers


def test_heads_that_cannot_be_divided_are_refused_with_what_would_work() -> None:
    with pytest.raises(UnsupportedModelError, match=r"4, which does not divide the 9 query heads of toy") as caught:
        rank_model_config(described(9, LayerConfig(num_kv_heads=3, head_size=8)), 4)
    assert caught.value.remedy == "Set it to one of 1, 3, 9."
    with pytest.raises(UnsupportedModelError, match="4, which neither divides 6 KV heads of toy nor is a multiple"):
        rank_model_config(described(12, LayerConfig(num_kv_heads=6, head_size=8)), 4)
