"""A GGUF architecture whose full layers have other sizes than its sliding ones: Gemma 4's.

Its files give each size twice, or once a layer. transformers' config has fields for some of the combinations only; a
file with another one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFHeader

READS = frozenset(
    {
        "attention.key_length_swa", "attention.value_length_swa", "attention.sliding_window_pattern",
        "rope.dimension_count_swa", "rope.freq_base_swa", "expert_count",
    }
)  # fmt: skip
"""GGUF fields that `set_layer_sizes` reads."""

_ROTARY_FACTORS = "rope_freqs.weight"


def set_layer_sizes(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Heads, MLPs, rotary embeddings and values by kind of layer, once `layer_types` is set.

    Raises `ModelFileError` for a missing field, `UnsupportedModelError` for sizes that transformers has no field for.
    """
    types = config.get("layer_types")
    if types is None or len(types) != config["num_hidden_layers"] or types[-1] != "full_attention":
        raise ModelFileError(
            f"{file.path}: {name}.attention.sliding_window_pattern does not say of each layer whether it is sliding, "
            "the last one being full.",
            remedy="Download the file again, or convert the model again.",
        )
    num_shared = file.get(f"{name}.attention.shared_kv_layers", int, 0)
    if not 0 <= num_shared <= len(types):
        raise _refused(file, f"{name}.attention.shared_kv_layers = {num_shared} with {len(types)} layers")
    config["num_kv_shared_layers"] = num_shared
    _set_heads(file, name, config, types)
    _set_inner_sizes(file, name, config, len(types) - num_shared)
    _set_rotary(file, name, config)
    embedding = file.tensors.get("per_layer_token_embd.weight")
    shape = () if embedding is None else embedding.shape
    config["vocab_size_per_layer_input"] = shape[0] if shape else config["vocab_size"]
    config.setdefault("hidden_size_per_layer_input", 0)
    config["enable_moe_block"] = file.get(f"{name}.expert_count", int, 0) > 0


def _set_heads(file: GGUFHeader, name: str, config: dict[str, Any], types: Sequence[str]) -> None:
    """Full layers have heads and KV heads of their own, and may take their values from their keys."""
    full, sliding = (file.get(f"{name}.attention.key_length{suffix}", int) for suffix in ("", "_swa"))
    for key, size in (
        ("attention.value_length_swa", sliding), ("rope.dimension_count_swa", sliding), ("rope.dimension_count", full),
    ):  # fmt: skip
        if (found := file.get(f"{name}.{key}", int, size)) != size:
            raise _refused(file, f"{name}.{key} = {found} beside heads of {size} elements")
    config["global_head_dim"], config["head_dim"] = full, sliding
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    by_layer = heads if isinstance(heads, list) else [heads] * len(types)
    found_heads = {kind: {n for n, of in zip(by_layer, types, strict=False) if of == kind} for kind in set(types)}
    if len(by_layer) != len(types) or any(len(numbers) != 1 for numbers in found_heads.values()):
        raise _refused(file, f"{name}.attention.head_count_kv = {str(by_layer)[:80]}, not one number a kind of layer")
    (full_heads,) = found_heads["full_attention"]
    (config["num_key_value_heads"],) = found_heads.get("sliding_attention", {full_heads})
    first_full = types.index("full_attention")
    config["attention_k_eq_v"] = f"blk.{first_full}.attn_v.weight" not in file.tensors
    if config["attention_k_eq_v"]:
        config["num_global_key_value_heads"] = full_heads
    elif full_heads != config["num_key_value_heads"]:
        raise _refused(file, f"{full_heads} KV heads in full layers, which have values of their own")


def _set_inner_sizes(file: GGUFHeader, name: str, config: dict[str, Any], num_own: int) -> None:
    """Layers behind the first `num_own`, which read another layer's keys, may have MLPs of twice the width."""
    sizes = config.get("intermediate_size")
    if not isinstance(sizes, list):
        return
    if len(sizes) != config["num_hidden_layers"] or sizes != [
        sizes[0] * (1 if index < num_own else 2) for index in range(len(sizes))
    ]:
        raise _refused(file, f"{name}.feed_forward_length = {str(sizes)[:80]}")
    config["intermediate_size"], config["use_double_wide_mlp"] = sizes[0], True


def _set_rotary(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """What of a full layer's heads is rotated is in the factors that the file brings along; the loader applies them."""
    if "rope_scaling" in config:
        raise _refused(file, f"{name}.rope.scaling.type = {config['rope_scaling']['rope_type']!r}")
    if _ROTARY_FACTORS not in file.tensors:
        raise ModelFileError(
            f"{file.path} lacks the tensor {_ROTARY_FACTORS}, which says how much of a head is rotated.",
            remedy="Download the file again, or convert the model again.",
        )
    whole = {"rope_type": "proportional", "partial_rotary_factor": 1.0, "rope_theta": config.pop("rope_theta", 1e6)}
    sliding = {"rope_type": "default", "rope_theta": file.get(f"{name}.rope.freq_base_swa", float, 1e4)}
    config["rope_parameters"] = {"full_attention": whole, "sliding_attention": sliding}


def _refused(file: GGUFHeader, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{file.path} has {what}, which transformers' config cannot say.",
        remedy="Use the safetensors version of the model.",
    )
