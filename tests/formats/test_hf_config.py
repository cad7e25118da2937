from __future__ import annotations

import dataclasses
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config import ModelConfig
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.config_fields import TypeFacts, config_table
from octavo.formats.hf_config import DEFAULT_MAX_POSITION, UNLIMITED_POSITION, model_config_from_hf
from octavo.formats.kv_specs import kv_cache_specs
from octavo.kv.specs import AttentionSpec, MambaSpec, MLASpec
from tests.formats.published import CONFIGS

ORACLE = Path(__file__).parents[1] / "data/oracle/cases.json"


def read(config: dict[str, Any]) -> ModelConfig:
    return model_config_from_hf(config, name="m")


LLAMA = CONFIGS["Llama-3.1-8B"]


def test_the_model_as_a_whole() -> None:
    model = read(LLAMA)
    assert (model.architecture, model.model_type, model.dtype) == ("LlamaForCausalLM", "llama", "bfloat16")
    assert (model.num_layers, model.hidden_size, model.num_heads, model.vocab_size) == (32, 4096, 32, 128256)
    assert model.max_position == 131072
    assert model.weight_bytes is None
    assert (model.layers[0].kind, model.layers[0].num_kv_heads, model.layers[0].head_size) == ("full", 8, 128)


def test_the_text_part_of_a_composite_config_counts() -> None:
    model = read(CONFIGS["Gemma-3-4b"])
    assert model.model_type == "gemma3_text"
    assert model.dtype == "bfloat16"
    assert [layer.kind for layer in model.layers[:6]] == ["sliding_window"] * 5 + ["full"]
    assert model.vocab_size == 262208  # transformers' default, for the text part omits it
    assert model.max_position == 131072


@pytest.mark.parametrize("name", CONFIGS)
def test_published_models_give_the_reference_engines_specs(name: str) -> None:
    """The specs that the oracle records for each model on one rank."""
    case = next(
        case for case in json.loads(ORACLE.read_text())["items"]
        if case.get("model") == name and case["tp"] == 1 and not {"hybrid_off", "quant"} & {*case, *case["specs"][0]}
    )  # fmt: skip
    theirs = [case["specs"][index] for stage in case["stages"] for _, index in stage]
    specs, shared = kv_cache_specs(read(CONFIGS[name]), block_size=16, dtype="bfloat16")
    assert not shared
    assert list(specs) == [f"layers.{index}" for index in range(len(theirs))]
    for spec, their in zip(specs.values(), theirs, strict=True):
        if isinstance(spec, MambaSpec):
            assert their["kind"] == "mamba"
            assert [*map(list, spec.shapes)] == their["shapes"]
            # transformers keeps every recurrence in float32, the reference engine only some (docs/decisions/0017).
            assert spec.dtypes == ("bfloat16", "float32")
        elif isinstance(spec, MLASpec):
            assert (their["kind"], spec.latent_size) == ("mla", their["head_size"])
            assert spec.value_size == CONFIGS[name]["kv_lora_rank"]
        else:
            assert isinstance(spec, AttentionSpec)
            assert (spec.num_kv_heads, spec.head_size) == (their["num_kv_heads"], their["head_size"])
            assert getattr(spec, "window", None) == their.get("window")
            assert getattr(spec, "chunk", None) == their.get("chunk")


def test_shared_layers_read_the_last_own_layer_of_their_type() -> None:
    config = {
        "model_type": "gemma3n_text", "num_hidden_layers": 10, "num_kv_shared_layers": 4, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 5,
    }  # fmt: skip
    layers = read(config).layers
    assert [layer.kv_sharing_target for layer in layers] == [None] * 6 + [4, 5, 4, 5]
    assert [layer.kind for layer in layers[6:]] == ["sliding_window", "full"] * 2


def test_gemma_4_has_other_heads_in_full_layers() -> None:
    config = {
        "model_type": "gemma4_text", "num_hidden_layers": 2, "num_key_value_heads": 8, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    assert [(layer.num_kv_heads, layer.head_size) for layer in read(config).layers] == [(8, 256), (2, 512)]


def test_settings_by_layer() -> None:
    overrides = {"1": {"num_key_value_heads": 2, "head_dim": 32}, "02": {"skip": ["attention"]}}
    layers = read(LLAMA | {"num_hidden_layers": 4, "per_layer_config": overrides}).layers
    assert [(layer.kind, layer.num_kv_heads, layer.head_size) for layer in layers] == [
        ("full", 8, 128), ("full", 2, 32), ("none", 0, 0), ("full", 8, 128),
    ]  # fmt: skip
    listed = read(LLAMA | {"num_hidden_layers": 3, "num_key_value_heads": [4, 0, 2]}).layers
    assert [(layer.kind, layer.num_kv_heads) for layer in listed] == [("full", 4), ("none", 0), ("full", 2)]


def test_heads_of_values_may_have_another_size() -> None:
    layers = read({"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "head_dim": 192, "v_head_dim": 128}).layers
    assert [(layer.head_size, layer.head_size_v) for layer in layers] == [(192, 128)] * 2


def test_sliding_layers_with_twice_the_heads() -> None:
    layers = read({"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "num_key_value_heads": 4}).layers
    assert [(layer.kind, layer.num_kv_heads) for layer in layers] == [("full", 4), ("sliding_window", 8)]


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        ({"model_type": "gpt2"}, 12),
        ({"model_type": "gpt_bigcode"}, 1),
        ({"model_type": "gpt_bigcode", "multi_query": False}, 12),
        ({"model_type": "falcon"}, 1),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 128,
             "hidden_size": 8192},
            8,
        ),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8}}, 8),
        ({"model_type": "dbrx"}, 1),
        ({"model_type": "jetmoe"}, 32),
        ({"model_type": "jetmoe", "num_key_value_heads": 2, "num_experts_per_tok": 3}, 6),
    ],
)  # fmt: skip
def test_kv_heads_under_other_names(config: dict[str, Any], kv_heads: int) -> None:
    assert read(config).layers[0].num_kv_heads == kv_heads


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": "gpt2", "n_positions": 77}, 77),
        ({"model_type": "bloom"}, DEFAULT_MAX_POSITION),
        ({"model_type": "bloom", "seq_length": 99}, 99),
        ({"model_type": "mamba"}, UNLIMITED_POSITION),
        (
            LLAMA | {"max_position_embeddings": 32768, "rope_scaling": {
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
    ],
)  # fmt: skip
def test_the_longest_sequence(config: dict[str, Any], length: int) -> None:
    assert read(config).max_position == length


@pytest.mark.parametrize(
    ("config", "field", "why"),
    [
        ({"model_type": "bert"}, "is_decoder", "later ones"),
        ({"model_type": "bart"}, "is_encoder_decoder", "encoder"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention", "later"),
        ({"model_type": "deepseek_v32"}, "index_head_dim", "index"),
        ({"model_type": "zaya"}, "layer_types", "state is not known"),
        ({"model_type": "reformer"}, "attn_layers", "buckets"),
        ({"model_type": "rwkv"}, "rescale_every", "state"),
        ({"model_type": "big_bird", "is_decoder": True}, "attention_type", "blocks"),
        ({"model_type": "gpt_oss", "sliding_window": None}, "sliding_window", "window is needed"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 99}, "num_kv_shared_layers", "35 layers"),
        (LLAMA | {"head_dim": "wide"}, "head_dim", "whole number"),
        (LLAMA | {"hidden_size": None}, "hidden_size", "above 0"),
        (LLAMA | {"per_layer_config": [1]}, "per_layer_config", "object"),
        (LLAMA | {"layer_types": ["sparse_attention"] * 32}, "layer_types", "'sparse_attention' are not known"),
        ({"model_type": "brand_new"}, "model_type", "does not know"),
        (LLAMA | {"max_position_embeddings": 0}, "max_position_embeddings", "above 0"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window", "above 0"),
        ({"model_type": "gpt_oss", "sliding_window": 0}, "sliding_window", "above 0"),
        ({"model_type": "exaone4", "sliding_window": 0}, "sliding_window", "above 0"),
        ({"model_type": "gemma3_text", "sliding_window": -4}, "sliding_window", "whole number"),
        ({"model_type": "llama4_text", "attention_chunk_size": 0}, "attention_chunk_size", "above 0"),
        (CONFIGS["DeepSeek-V3"] | {"kv_lora_rank": 0}, "kv_lora_rank", "above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(config: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why) as caught:
        read(config)
    assert caught.value.numbers["field"] == field
    assert field in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "config", [{}, {"model_type": 3}, {"model_type": "gemma3"}, {"model_type": "gemma3", "text_config": 1}]
)
def test_a_config_that_is_none_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError):
        read(config)


# Against transformers itself ------------------------------------------------------------------------------------------

CHOICES: dict[str, list[Any]] = {
    "num_hidden_layers": [1, 2, 3, 5, 6, 7, 8, 13],
    "num_key_value_heads": [None, 1, 2],
    "head_dim": [None, 64],
    "sliding_window": [None, 8, 4096],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1, 3, 28],
    "sliding_window_pattern": [2, 3, 4],
    "prefix_dense_sliding_window_pattern": [1, 2],
    "first_k_dense_replace": [0, 1, 2],
    "global_attn_every_n_layers": [2, 3],
    "local_attention": [16, 128],
    "attention_chunk_size": [None, 64],
    "no_rope_layer_interval": [2, 3, 4],
    "full_attention_interval": [2, 3],
    "attn_layer_period": [2, 4],
    "attn_layer_offset": [0, 1],
    "attn_layer_indices": [None, [0, 2]],
    "full_attn_idxs": [None, [1]],
    "layer_group_size": [2, 3],
    "num_kv_shared_layers": [0, 1, 2],
    "global_head_dim": [None, 32],
    "num_global_key_value_heads": [None, 1],
    "attention_k_eq_v": [True, False],
}
"""Values that the comparison tries, for the fields that a class has (and a few that classes take without having)."""

NOT_FIELDS = (
    "sliding_window_pattern",
    "full_attention_interval",
    "global_attn_every_n_layers",
    "first_k_dense_replace",
)
"""Older names that classes read from their keyword arguments."""

NO_TRUTH = ("falcon", "gpt_neo", "mimo_v2_flash")
"""Their config objects do not say heads or windows in the usual fields; other tests have them."""


def transformers_says(config: Any, facts: TypeFacts) -> list[tuple[Any, ...]]:
    """(type, KV heads, head size, window) of each layer as the config object has them."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    layers = []
    own_names = {name: facts.names.get(name, name) for name in ("num_hidden_layers", "num_attention_heads")}
    for index in range(getattr(config, own_names["num_hidden_layers"])):
        own = config.per_layer_config[index]
        window = getattr(own, "sliding_window", None) or None
        kind = (
            types[index] if types else "sliding_attention" if "sliding" in facts.masks and window else "full_attention"
        )
        if kind in ("linear_attention", "conv", "moe", "mlp"):
            layers.append((kind in ("linear_attention", "conv"),))
            continue
        heads = getattr(own, own_names["num_attention_heads"], None)
        sizes: tuple[Any, ...] = ("mla",)
        if not getattr(own, "kv_lora_rank", None):
            size = getattr(own, "head_dim", None) or own.hidden_size // heads
            # A class with kv_channels copies its KV heads for each expert before it attends.
            has_copies = getattr(own, "kv_channels", None) is not None
            sizes = (heads if has_copies else getattr(own, "num_key_value_heads", None) or heads, size)
        layers.append((*sizes, window if kind == "sliding_attention" else None, kind == "chunked_attention"))
    return layers


def octavo_says(model: ModelConfig) -> list[tuple[Any, ...]]:
    layers: list[tuple[Any, ...]] = []
    for layer in model.layers:
        if layer.kind in ("mamba", "none"):
            layers.append((layer.kind == "mamba",))
        else:
            sizes = ("mla",) if layer.kind == "mla" else (layer.num_kv_heads, layer.head_size)
            layers.append((*sizes, layer.window, layer.kind == "chunked_local"))
    return layers


@pytest.fixture
def silent() -> Iterator[None]:
    """Config classes warn of fields that make no sense together."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_causal_model_type_agrees_with_its_config_class(silent: None) -> None:
    """Random fields of every class: the same layers, or a refusal that names a field. Nothing else."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    generator = random.Random(20)
    agreed: dict[str, int] = {}
    for model_type, facts in config_table().items():
        if facts.architecture is None or facts.text is not None or model_type in NO_TRUTH:
            continue
        config_class = auto.CONFIG_MAPPING[model_type]
        known = {field.name for field in dataclasses.fields(config_class)}
        for _ in range(12):
            values = {
                facts.names.get(name, name): generator.choice(choices)
                for name, choices in CHOICES.items()
                if (facts.names.get(name, name) in known or (name in NOT_FIELDS and generator.random() < 0.2))
                and generator.random() < 0.5
            }
            try:
                config = config_class(**values)
                truth = transformers_says(config, facts)
            except Exception:  # the class itself does not take these values together
                continue
            try:
                model = read({"model_type": model_type, **values})
            except UnsupportedModelError as error:
                assert "field" in error.numbers
                continue
            assert octavo_says(model) == truth, (model_type, values)
            saved = json.loads(json.dumps(config.to_dict(), default=str))
            assert octavo_says(read(saved)) == truth, (model_type, values, "as saved")
            agreed[model_type] = agreed.get(model_type, 0) + 1
    assert len(agreed) >= 110, f"only {len(agreed)} types were compared"


def test_a_window_that_is_switched_off_may_be_0() -> None:
    switched_off = CONFIGS["Qwen2.5-7B"] | {"sliding_window": 0, "use_sliding_window": False}
    assert {layer.kind for layer in read(switched_off).layers} == {"full"}


def test_a_model_with_code_of_its_own_is_planned_from_the_usual_fields() -> None:
    fields = {
        "model_type": "own", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 10,
        "num_key_value_heads": 2, "max_position_embeddings": 100,
    }  # fmt: skip
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}
    config = model_config_from_hf(fields | own, name="own")
    assert (config.architecture, config.max_position) == ("OwnForCausalLM", 100)
    assert {(layer.kind, layer.num_kv_heads, layer.head_size) for layer in config.layers} == {("full", 2, 16)}
    with pytest.raises(UnsupportedModelError, match="model_type = 'own'"):
        model_config_from_hf(fields, name="own")


def test_a_text_part_whose_type_is_no_text_is_refused() -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": ["gemma3_text"], "num_hidden_layers": 2}}
    with pytest.raises(UnsupportedModelError, match=r"text_config has model_type = \['gemma3_text'\], which is not"):
        model_config_from_hf(config, name="m")
