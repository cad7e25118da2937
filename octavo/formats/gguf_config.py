"""GGUF metadata in transformers' terms: the config from which transformers builds the model.

A GGUF file names its fields after llama.cpp. Everything the file states about the model's shape is set, since a default
of transformers' config class is one checkpoint's value and need not be this one's. A field that is not in the tables
below and changes what the model computes is refused by name.
"""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFArray, GGUFHeader
from octavo.formats.gguf_architectures import ARCHITECTURES, Architecture, head_size

_SHAPE_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
"""Fields that every architecture names alike, and transformers' usual names for them."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "attention.sliding_window",
            "attention.sliding_window_pattern", "attention.temperature_length", "attention.temperature_scale",
            "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_swa", "attention.value_length_swa",
            "attention.key_length_mla", "attention.value_length_mla", "attention.shared_kv_layers",
            "attention.relative_buckets_count", "attn_logit_softcapping", "final_logit_softcapping",
            "router_logit_softcapping", "expert_count", "expert_shared_count", "expert_group_scale",
            "leading_dense_block_count", "nextn_predict_layers", "swiglu_clamp_exp", "swiglu_clamp_shexp",
            "embedding_length_per_layer_input", "interleave_moe_layer_step", "full_attention_interval",
            "altup.num_inputs", "activation_sparsity_scale", "rope.freq_base_swa", "rope.dimension_count_swa",
            "rope.dimension_sections", "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier", "ssm.state_size",
            "shortconv.l_cache", "attention.compress_ratios", "attention.indexer.head_count", "attention.indexer.top_k",
            "attention.indexer.key_length", "attention.output_lora_rank", "attention.group_norm_groups",
            "attn_res.block_size", "expert_latent_length", "moe_latent_size", "hash_layer_count", "kda.head_dim",
            "n_deepstack_layers", "rescale_every_n_layers", "swin_norm", "token_shift_count", "wkv.head_size",
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            "attention.output_scale", "logit_scale", "embedding_scale", "residual_scale", "expert_weights_scale",
            "attention.value_scale", "hyper_connection.count", "num_loops", "hrm.h_cycles", "hrm.l_cycles",
            "expert_group_count", "expert_group_used_count", "moe_every_n_layers", "rope.scaling.attn_factor",
            "rope.scaling.yarn_attn_factor",
        ),
        (0, 1),
    ),
    "attention.causal": (True,),
    "attention.rope_pattern": (True,),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),
    "rope.scaling.yarn_ext_factor": (-1, 1),
}  # fmt: skip
"""Fields that change what a model computes, and their values that change nothing."""


def hf_config_of_gguf(file: GGUFHeader) -> dict[str, Any]:
    """The config dict from which transformers builds the model of this file.

    Raises `UnsupportedModelError` for an architecture without a counterpart in transformers, `ModelFileError` when a
    field that the architecture needs is missing or of another kind.
    """
    name = file.get("general.architecture", str)
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedModelError(
            f"{file.path} has the GGUF architecture {name!r}, which cannot be mapped to a transformers model.",
            remedy="Use the safetensors version of the model. Known architectures: " + ", ".join(ARCHITECTURES) + ".",
        )
    _refuse_unread_fields(file, name, architecture)
    config: dict[str, Any] = {"model_type": architecture.model_type, **architecture.constants}
    for key, field in (_SHAPE_FIELDS | architecture.fields).items():
        value = _plain(file.metadata.get(f"{name}.{key}"))
        if value is not None:
            config[field] = _checked(file, f"{name}.{key}", value) if key in _SHAPE_FIELDS else value
    heads = ("num_attention_heads",) if architecture.has_attention else ()
    for field in ("num_hidden_layers", "hidden_size", *heads):
        if not isinstance(config.get(field), int) or config[field] <= 0:
            raise ModelFileError(
                f"{file.path}: the metadata of the architecture {name!r} does not say {field}.",
                remedy="Download the file again, or convert the model again.",
            )
    norm_key, norm_field = architecture.norm
    config[norm_field] = file.get(f"{name}.{norm_key}", float)
    config["vocab_size"] = _vocab_size(file, name)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["dtype"] = _dtype(file)
    _set_rotary(file, name, config)
    for setter in architecture.setters:
        setter(file, name, config)
    if architecture.has_attention:
        _check_heads(file, name, config)
    for usual, own in architecture.names.items():
        value = config.pop(usual, None)
        if own is not None and value is not None:
            config[own] = value
    for key, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[field] = token_id if isinstance(token_id, int) and token_id < config["vocab_size"] else None
    return config


def _refuse_unread_fields(file: GGUFHeader, name: str, architecture: Architecture) -> None:
    """Refuse by name what the file states about the computation and nothing here reads."""
    read = {*_SHAPE_FIELDS, *architecture.fields, *architecture.reads}
    for key, value in file.metadata.items():
        field = key.removeprefix(f"{name}.")
        if field == key or field in read or field not in _NEUTRAL:
            continue
        plain = _plain(value)
        if plain not in _NEUTRAL[field]:
            raise UnsupportedModelError(
                f"{file.path} has {key} = {str(plain)[:80]}, which is not known for models of this architecture.",
                remedy="Use the safetensors version of the model.",
            )


def _check_heads(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Refuse heads whose parts are not what the config will say."""
    head_dim = config.get("global_head_dim") or head_size(file, config)
    value_length = file.get(f"{name}.attention.value_length", int, head_dim)
    rotated = file.get(f"{name}.rope.dimension_count", int, head_dim)
    is_partial = "partial_rotary_factor" in (config.get("rope_parameters") or config)
    if value_length != head_dim or (rotated not in (0, head_dim) and not is_partial):
        raise UnsupportedModelError(
            f"{file.path} has heads of {head_dim} elements, {rotated} of them rotated, with values of {value_length}; "
            f"models of the architecture {name!r} are known with whole heads only.",
            remedy="Use the safetensors version of the model.",
        )


_BY_LAYER = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")


def _checked(file: GGUFHeader, key: str, value: Any) -> Any:
    """A size: a whole number, or for some fields one for each layer."""
    values = value if isinstance(value, list) and key.endswith(_BY_LAYER) else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 53 for number in values):
        raise ModelFileError(
            f"{file.path} has {key} = {str(value)[:80]}, which is no size.",
            remedy="Download the file again, or convert the model again.",
        )
    return value


def _plain(value: Any) -> Any:
    """An array as a list, or as its one value where all are equal."""
    if not isinstance(value, GGUFArray):
        return value
    values = value.tolist()
    return values[0] if values and values == values[:1] * len(values) else values


def _vocab_size(file: GGUFHeader, name: str) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return embedding.shape[0]
    tokens = file.array("tokenizer.ggml.tokens")
    return file.get(f"{name}.vocab_size", int, len(tokens) if tokens is not None else None)


def _dtype(file: GGUFHeader) -> str:
    """What the weights were before they were quantised: bfloat16, unless the file holds plain numbers alone."""
    types = {info.type for info in file.tensors.values()}
    if types <= {"F32"}:
        return "float32"
    return "float16" if types <= {"F32", "F16"} else "bfloat16"


def _set_rotary(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """The rotary base and the scaling of positions. Factors in `rope_freqs.weight` are applied by the loader."""
    if f"{name}.rope.freq_base" in file.metadata:
        config["rope_theta"] = file.get(f"{name}.rope.freq_base", float)
    kind = file.get(f"{name}.rope.scaling.type", str, "none")
    if kind == "none":
        return
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(
            f"{file.path} has {name}.rope.scaling.type = {kind!r}, which cannot be mapped to transformers.",
            remedy="Use the safetensors version of the model.",
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": file.get(f"{name}.rope.scaling.factor", float)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = file.get(f"{name}.rope.scaling.original_context_length", int)
        for key, field in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if f"{name}.rope.scaling.{key}" in file.metadata:
                scaling[field] = file.get(f"{name}.rope.scaling.{key}", float)
    config["rope_scaling"] = scaling
