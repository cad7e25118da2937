"""What a transformers config says about each layer's cache.

Fields decide, wherever a field says it; the few things that transformers' classes hard-wire are tables in this module,
`layer_types` and `config_fields`. What cannot be read is refused by the name of the field: a cache planned from a wrong
guess would be wrong for every user of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.config import DTYPE_BYTES, LayerConfig, ModelConfig
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.config_fields import OPTIONAL_FIELDS, ConfigFields, TypeFacts, config_table
from octavo.formats.heads import num_query_heads, own_head_size, own_kv_heads
from octavo.formats.layer_types import CHUNKED, CONV, FULL, HYBRID, LINEAR, SLIDING, layer_types, sliding_window
from octavo.formats.state_shapes import State, conv_state, linear_state

NO_CACHE = frozenset({"mlp", "moe", "dense", "sparse"})
"""Layer types that keep nothing."""

REFUSED_FIELDS = {
    "n_recurrent_loops": "layers that run several times keep several caches",
    "H_cycles": "layers that run several times keep several caches",
    "backbone_hidden_size": "it is a drafter that reads another model's cache",
    "patcher_config": "a model over bytes with several caches",
    "cross_attention_layers": "layers that attend to images keep no cache of the text",
    "attn_layers": "hashed attention keeps buckets instead of a cache",
    "mem_len": "its attention keeps a memory of segments",
    "causal": "its attention is not causal by construction",
    "ngram": "it predicts several tokens at once with streams of their own",
    "prompt_length": "its prompt is learned and its attention two-way",
    "rescale_every": "its recurrent state has a shape of its own",
    "num_blocks": "its recurrent state has a shape of its own",
    "index_head_dim": "sparse attention keeps an index beside its cache",
}
"""Fields that only models with another kind of cache have."""

DEFAULT_MAX_POSITION = 2048
"""Where no field tells the longest sequence (ALiBi models): what such models were usually trained on."""

UNLIMITED_POSITION = 1 << 20
"""Where no field tells it and no layer attends: a state does not grow."""

SLIDING_HEADS_FACTOR = {"mimo_v2_flash": 2}
"""Model types whose sliding layers have so many times the KV heads of the config: their modeling code says so alone."""

GLOBAL_HEAD_DIM = 512
"""Gemma 4's head size in full layers where the config is silent: its class has this default but no field for it."""
GLOBAL_HEAD_TYPES = ("gemma4_text", "gemma4_unified_text")
"""Types whose full layers have heads of their own size, and of their own number where they use keys as values."""


def model_config_from_hf(
    config: Mapping[str, Any], *, name: str, weight_bytes: int | None = None, dtype: str | None = None
) -> ModelConfig:
    """The `ModelConfig` of a transformers config dict; of a composite one, its text part's.

    `dtype` is the weights' own, for configs that do not name one.
    Raises `UnsupportedModelError`, naming the field, when a layer's cache cannot be told from the config.
    """
    fields, architecture = _text_fields(config)
    _refuse_other_caches(fields)
    types = layer_types(fields)
    layers = _share_layers(fields, types, [_layer(fields, types, index) for index in range(len(types))])
    attends = any(layer.kind not in ("mamba", "none") for layer in layers)
    return ModelConfig(
        name=name,
        architecture=architecture,
        model_type=fields.model_type,
        dtype=_dtype(config, fields) or dtype or "float32",
        num_layers=len(layers),
        hidden_size=fields.positive("hidden_size"),
        num_heads=num_query_heads(fields) if attends else fields.whole("num_attention_heads") or 0,
        vocab_size=fields.positive("vocab_size"),
        max_position=_max_position(config, fields, attends=attends),
        layers=tuple(layers),
        weight_bytes=weight_bytes,
    )


def _text_fields(config: Mapping[str, Any]) -> tuple[ConfigFields, str]:
    """The fields of the text part, and the causal-LM class."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelFileError(
            "The config has no model_type.", remedy="Give the folder of a model that transformers saved."
        )
    facts = config_table().get(model_type) or _facts_of_own_code(config)
    if facts is None:
        raise UnsupportedModelError(
            f"The config has model_type = {model_type!r}, which the supported transformers does not know as a causal "
            "language model.",
            remedy="Use another model, or a newer Octavo.",
            field="model_type",
        )
    architecture = _architecture(config, facts)
    if facts.text is None:
        return ConfigFields(config, model_type, facts), architecture
    key, text_type = facts.text
    part = config.get(key)
    if part is None and config.get("num_hidden_layers") is not None:
        part = config  # An older config of a text-only checkpoint: the text part's fields lie at the top.
    if not isinstance(part, dict):
        raise ModelFileError(f"The config has no object {key}.", remedy="Download the model again.")
    text_type = part.get("model_type", text_type) if part is not config else text_type
    text_facts = config_table().get(text_type) if isinstance(text_type, str) else None
    if text_facts is None:
        raise UnsupportedModelError(
            f"The config's {key} has model_type = {text_type!r}, which is not known.",
            remedy="Use another model, or a newer Octavo.",
            field="model_type",
        )
    return ConfigFields(part, text_type, text_facts), architecture or text_facts.architecture or ""


def _facts_of_own_code(config: Mapping[str, Any]) -> TypeFacts | None:
    """For a model type that transformers does not know, of a model with Python code of its own: fields by their usual
    names, and no defaults. Whether the model does what they say is examined when its code is run, with consent."""
    own_classes = config.get("auto_map")
    reference = own_classes.get("AutoModelForCausalLM") if isinstance(own_classes, Mapping) else None
    if not isinstance(reference, str):
        return None
    return TypeFacts(architecture=reference.rpartition(".")[2], reads=OPTIONAL_FIELDS)


def _architecture(config: Mapping[str, Any], facts: TypeFacts) -> str:
    """The class that transformers builds: the table's; the config's own list may name a class of another kind."""
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None
    return facts.architecture or first or ""


def _refuse_other_caches(fields: ConfigFields) -> None:
    if fields.flag("is_encoder_decoder"):
        raise fields.refuse("is_encoder_decoder", "the encoder's states would need a cache of their own")
    for name, why in REFUSED_FIELDS.items():
        if fields.knows(name):
            raise fields.refuse(name, why)
    if fields.get("attention_type") not in (None, "original_full"):
        raise fields.refuse("attention_type", "its attention is sparse by blocks")
    if "bidirectional" in fields.facts.masks and fields.get("is_decoder") is False:
        raise fields.refuse("is_decoder", "its tokens attend to later ones, so nothing can be cached")
    two_way = fields.get("use_bidirectional_attention")
    if two_way and two_way != "vision":
        raise fields.refuse("use_bidirectional_attention", "its tokens attend to later ones, so nothing can be cached")


def _layer(fields: ConfigFields, types: list[str], index: int) -> LayerConfig:
    kind = types[index]
    own, skips_attention = _with_layer_overrides(fields, kind, index)
    if kind in NO_CACHE or skips_attention:
        return LayerConfig(kind="none")
    if kind == LINEAR:
        return _state_layer(linear_state(own))
    if kind == CONV:
        return _state_layer(conv_state(own))
    if kind == HYBRID:
        state = linear_state(own)
        return msgspec.structs.replace(
            _attention_layer(fields, own, types, index), state_shapes=state.shapes, state_dtypes=state.dtypes
        )
    return _attention_layer(fields, own, types, index)


def _attention_layer(fields: ConfigFields, own: ConfigFields, types: list[str], index: int) -> LayerConfig:
    kind = FULL if types[index] == HYBRID else types[index]
    if kind not in (FULL, SLIDING, CHUNKED):
        raise fields.refuse("layer_types", f"layers of type {kind!r} are not known")
    latent_size = own.positive_or_absent("kv_lora_rank")
    if latent_size:
        if kind != FULL:
            raise fields.refuse("layer_types", f"{kind!r} together with kv_lora_rank is not known")
        size = latent_size + own.positive("qk_rope_head_dim")
        return LayerConfig(kind="mla", num_kv_heads=1, head_size=size, head_size_v=latent_size)
    factor = SLIDING_HEADS_FACTOR.get(own.model_type, 1) if kind == SLIDING else 1
    num_kv_heads = own_kv_heads(own, index, len(types), factor)
    if num_kv_heads == 0:
        return LayerConfig(kind="none")
    head_size = own_head_size(own, index, len(types))
    value_size = own.positive_or_absent("v_head_dim")
    sizes: dict[str, Any] = {
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "head_size_v": None if value_size == head_size else value_size,
    }
    if kind == CHUNKED:
        return LayerConfig(kind="chunked_local", chunk=own.positive("attention_chunk_size"), **sizes)
    window = sliding_window(own) if kind == SLIDING else None
    if kind == SLIDING and window is None and own.get("use_sliding_window") is None:
        raise fields.refuse("sliding_window", "layer_types lists sliding layers, so a window is needed")
    return LayerConfig(kind="full" if window is None else "sliding_window", window=window, **sizes)


def _state_layer(state: State) -> LayerConfig:
    return LayerConfig(kind="mamba", state_shapes=state.shapes, state_dtypes=state.dtypes)


def _with_layer_overrides(fields: ConfigFields, kind: str, index: int) -> tuple[ConfigFields, bool]:
    """(the fields as they hold for one layer, whether its attention is left out)"""
    per_layer = fields.get("per_layer_config")
    if per_layer is not None:
        if not isinstance(per_layer, dict):
            raise fields.refuse("per_layer_config", "an object of layer numbers is needed")
        own: Any = next((value for key, value in per_layer.items() if str(key).isdigit() and int(key) == index), {})
        if not isinstance(own, dict):
            raise fields.refuse("per_layer_config", f"the entry of layer {index} is not an object")
        return fields.with_overrides(own), any("att" in str(part) for part in own.get("skip") or ())
    if fields.model_type in GLOBAL_HEAD_TYPES and kind == FULL:
        overrides: dict[str, Any] = {"head_dim": fields.positive_or_absent("global_head_dim") or GLOBAL_HEAD_DIM}
        if fields.flag("attention_k_eq_v") and fields.positive_or_absent("num_global_key_value_heads"):
            overrides["num_key_value_heads"] = fields.positive("num_global_key_value_heads")
        return fields.with_overrides(overrides), False
    return fields, False


def _share_layers(fields: ConfigFields, types: list[str], layers: list[LayerConfig]) -> list[LayerConfig]:
    """The last `num_kv_shared_layers` layers read the cache of the last layer before them that is of their own type."""
    num_shared = fields.whole("num_kv_shared_layers") or 0
    first = len(layers) - num_shared
    if num_shared and first <= 0:
        raise fields.refuse("num_kv_shared_layers", f"there are only {len(layers)} layers")
    for index in range(first, len(layers)):
        target = next((i for i in range(first - 1, -1, -1) if types[i] == types[index]), None)
        if target is None:
            raise fields.refuse("num_kv_shared_layers", f"no layer before {first} is of type {types[index]!r}")
        layers[index] = LayerConfig(
            kind=layers[target].kind,
            num_kv_heads=layers[target].num_kv_heads,
            head_size=layers[target].head_size,
            head_size_v=layers[target].head_size_v,
            window=layers[target].window,
            chunk=layers[target].chunk,
            kv_sharing_target=target,
        )
    return layers


def _dtype(config: Mapping[str, Any], fields: ConfigFields) -> str | None:
    """The checkpoint's dtype; the text part's own wins. Raises `UnsupportedModelError` for one that there is not."""
    for value in (fields.get("dtype"), fields.given("torch_dtype"), config.get("dtype"), config.get("torch_dtype")):
        name = str(value).removeprefix("torch.")
        if name in DTYPE_BYTES:
            return name
        if value is not None and value != "auto":
            raise fields.refuse("dtype", f"it is {value!r:.40}; known are {', '.join(DTYPE_BYTES)}")
    return None


def _max_position(config: Mapping[str, Any], fields: ConfigFields, *, attends: bool) -> int:
    """Longest sequence in tokens. Under YaRN, the length before scaling times the factor, if that is longer."""
    length = fields.positive_or_absent("max_position_embeddings")
    if not length:
        given = [config.get(key) for key in ("seq_length", "n_positions", "max_seq_len", "context_length")]
        length = next((value for value in given if isinstance(value, int) and value > 0), None)
    if not length:
        return DEFAULT_MAX_POSITION if attends else UNLIMITED_POSITION
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "yarn":
            original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
            if isinstance(original, int) and isinstance(factor, (int, float)) and 1 <= factor < 1 << 20:
                length = max(length, int(original * factor))
    return length
