"""GGUF metadata in transformers' terms: the config that transformers needs to build the model.

A GGUF file names its fields after llama.cpp. Everything the file states about the model's shape is set, since a default
of transformers' config class is one checkpoint's value and need not be this one's.
"""

from __future__ import annotations

from typing import Any, Literal

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


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """How one GGUF architecture reads as a transformers config."""

    model_type: str
    head_dim: Literal["key_length", "rope_dimension_count", "none"] = "key_length"
    """Where `head_dim` comes from, when the config has that field."""
    norm_field: str = "rms_norm_eps"
    fields: dict[str, str] = {}
    """Further GGUF fields (without the architecture's prefix) and the config fields they become."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(model_type="llama"),
    "gemma3": Architecture(model_type="gemma3_text", fields={"attention.sliding_window": "sliding_window"}),
    "qwen2": Architecture(model_type="qwen2", head_dim="none"),
    "qwen3": Architecture(model_type="qwen3"),
}


def hf_config_of_gguf(file: GGUFFile) -> dict[str, Any]:
    """The config dict from which transformers builds the model of this file.

    Raises `UnsupportedModelError` for an architecture without a counterpart in transformers, `ModelFileError` when a
    field that the architecture needs is missing or of another kind.
    """
    name = file.get("general.architecture", str)
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} has the GGUF architecture {name!r}, which cannot be mapped to a transformers model.",
            remedy="Use the safetensors version of the model. Known architectures: " + ", ".join(ARCHITECTURES) + ".",
        )
    architecture = ARCHITECTURES[name]
    config: dict[str, Any] = {"model_type": architecture.model_type}
    for key, field in (_SHAPE_FIELDS | architecture.fields).items():
        value = _plain(file.metadata.get(f"{name}.{key}"))
        if value is not None:
            config[field] = value
    for field in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        if field not in config:
            raise ModelFileError(
                f"{file.path}: the metadata of the architecture {name!r} does not say {field}.",
                remedy="Download the file again, or convert the model again.",
            )
    config["vocab_size"] = _vocab_size(file, name)
    _set_head_dim(file, name, architecture, config)
    epsilon = file.metadata.get(f"{name}.attention.layer_norm_rms_epsilon")
    if epsilon is not None:
        config[architecture.norm_field] = epsilon
    theta = file.metadata.get(f"{name}.rope.freq_base")
    if theta is not None:
        config["rope_theta"] = theta
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for key in ("bos", "eos", "padding"):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{'pad' if key == 'padding' else key}_token_id"] = token_id
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


def _set_head_dim(file: GGUFFile, name: str, architecture: Architecture, config: dict[str, Any]) -> None:
    key = {"key_length": "attention.key_length", "rope_dimension_count": "rope.dimension_count"}.get(
        architecture.head_dim
    )
    value = file.metadata.get(f"{name}.{key}") if key else None
    if value is not None:
        config["head_dim"] = value
