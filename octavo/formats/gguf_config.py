"""GGUF metadata in transformers' terms: the config from which transformers builds the model.

A GGUF file names its fields after llama.cpp. Everything the file states about the model's shape is set, since a default
of transformers' config class is one checkpoint's value and need not be this one's. A field that is not in the tables
below and changes what the model computes is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFArray, GGUFFile

_SHAPE_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
"""Fields that every architecture names alike, and transformers' usual names for them."""

_EXPERT_FIELDS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}

_SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
}

Setter = Callable[[GGUFFile, str, dict[str, Any]], None]
"""(file, architecture, config) -> completes the config."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """How one GGUF architecture reads as a transformers config."""

    model_type: str
    norm: tuple[str, str] = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    """The epsilon of its norms: GGUF field, config field."""
    fields: dict[str, str] = {}
    """Further GGUF fields (without the architecture's prefix) and the config fields they become."""
    constants: dict[str, Any] = {}
    """Config fields that every file of this architecture has, though transformers' default is another."""
    setters: tuple[Setter, ...] = ()


def _head_dim(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    """The head size, which older files give as the number of rotated dimensions alone."""
    for key in ("attention.key_length", "rope.dimension_count"):
        if f"{name}.{key}" in file.metadata:
            config["head_dim"] = file.get(f"{name}.{key}", int)
            return


def _partial_rotary(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    head_dim = file.get(f"{name}.attention.key_length", int, config["hidden_size"] // config["num_attention_heads"])
    rotated = file.get(f"{name}.rope.dimension_count", int, head_dim)
    config["partial_rotary_factor"] = rotated / head_dim


def _attention_bias(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors


def _mixtral_if_experts(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    """llama.cpp calls Mixtral `llama`, too."""
    if file.get(f"{name}.expert_count", int, 0) == 0:
        return
    config["model_type"] = "mixtral"
    config["num_local_experts"] = file.get(f"{name}.expert_count", int)
    config["num_experts_per_tok"] = file.get(f"{name}.expert_used_count", int)
    config["sliding_window"] = None


def _no_extended_rotary(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    for tensor in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if tensor in file.tensors:
            raise UnsupportedModelError(
                f"{file.path} brings rotary factors for short and long sequences ({tensor}).",
                remedy="Use the safetensors version of the model.",
            )


def _window_or_none(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    """0 stands for no window."""
    config["sliding_window"] = file.get(f"{name}.attention.sliding_window", int, 0) or None


def _stablelm(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
    config["use_qkv_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file.tensors
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in file.tensors


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(model_type="llama", setters=(_head_dim, _attention_bias, _mixtral_if_experts)),
    "gemma": Architecture(model_type="gemma", setters=(_head_dim,)),
    "gemma2": Architecture(model_type="gemma2", fields=_SOFT_CAPS, setters=(_head_dim,)),
    # The file does not say which layers are sliding: five of six are, as in the class's own pattern.
    "gemma3": Architecture(model_type="gemma3_text", fields=_SOFT_CAPS, setters=(_head_dim,)),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        fields=_EXPERT_FIELDS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    ),
    "qwen3": Architecture(model_type="qwen3", setters=(_head_dim,)),
    "qwen3moe": Architecture(
        model_type="qwen3_moe", fields=_EXPERT_FIELDS, constants={"norm_topk_prob": True}, setters=(_head_dim,)
    ),
    "phi3": Architecture(model_type="phi3", setters=(_partial_rotary, _window_or_none, _no_extended_rotary)),
    "starcoder2": Architecture(
        model_type="starcoder2",
        norm=("attention.layer_norm_epsilon", "norm_epsilon"),
    ),
    "stablelm": Architecture(
        model_type="stablelm",
        norm=("attention.layer_norm_epsilon", "layer_norm_eps"),
        setters=(_partial_rotary, _stablelm),
    ),
    "olmo2": Architecture(model_type="olmo2"),
}
"""`general.architecture` -> transformers. Others are refused: what converters did to their tensors (permuted rows,
shifted norms) is undone for these alone, in `octavo.models.gguf_weights`."""


def hf_config_of_gguf(file: GGUFFile) -> dict[str, Any]:
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
    config: dict[str, Any] = {"model_type": architecture.model_type, **architecture.constants}
    for key, field in (_SHAPE_FIELDS | architecture.fields).items():
        value = _plain(file.metadata.get(f"{name}.{key}"))
        if value is not None:
            config[field] = value
    for field in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
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
    for key, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[field] = token_id if isinstance(token_id, int) and token_id < config["vocab_size"] else None
    return config


def _plain(value: Any) -> Any:
    """An array as a list, or as its one value where all are equal."""
    if not isinstance(value, GGUFArray):
        return value
    values = value.tolist()
    return values[0] if values and values == values[:1] * len(values) else values


def _vocab_size(file: GGUFFile, name: str) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return embedding.shape[0]
    tokens = file.array("tokenizer.ggml.tokens")
    return file.get(f"{name}.vocab_size", int, len(tokens) if tokens is not None else None)


def _dtype(file: GGUFFile) -> str:
    """What the weights were before they were quantised: bfloat16, unless the file holds plain numbers alone."""
    types = {info.type for info in file.tensors.values()}
    if types <= {"F32"}:
        return "float32"
    return "float16" if types <= {"F32", "F16"} else "bfloat16"


def _set_rotary(file: GGUFFile, name: str, config: dict[str, Any]) -> None:
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
