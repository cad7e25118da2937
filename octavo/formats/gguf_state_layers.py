"""GGUF architectures some of whose layers keep a state: which layers, and of what size."""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelFileError
from octavo.formats.config_fields import MAX_LAYERS
from octavo.formats.gguf import GGUFHeader

DELTA_READS = frozenset(
    {
        "attention.recurrent_layers", "full_attention_interval", "nextn_predict_layers", "ssm.inner_size",
        "rope.dimension_sections",
    }
)  # fmt: skip
"""GGUF fields that `delta_states` reads."""


def short_convolutions(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """A layer without KV heads is a convolution."""
    heads = file.array(f"{name}.attention.head_count_kv")
    if heads is not None:
        by_layer = heads.tolist()
        config["layer_types"] = ["full_attention" if number else "conv" for number in by_layer]
        config["num_key_value_heads"] = max(by_layer, default=0)
    config["conv_bias"] = "blk.0.shortconv.conv.bias" in file.tensors


def selective_states(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Falcon's variant norms what the others use as it comes."""
    if file.get(f"{name}.ssm.dt_b_c_rms", bool, False):
        config["model_type"] = "falcon_mamba"
    config["use_conv_bias"] = "blk.0.ssm_conv1d.bias" in file.tensors
    config["expand"] = file.get(f"{name}.ssm.inner_size", int) // config["hidden_size"]


def delta_states(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """The gated delta rule in all layers but each n-th, or in those that the file lists.

    Layers at the end that predict further tokens are counted by the file, and left out here. Raises `ModelFileError`
    for numbers that contradict each other.
    """
    num_further = file.get(f"{name}.nextn_predict_layers", int, 0)
    num_layers = config["num_hidden_layers"] - num_further
    value_heads = config.get("linear_num_value_heads")
    if not 0 < num_layers <= MAX_LAYERS or num_further < 0 or not isinstance(value_heads, int) or value_heads <= 0:
        raise ModelFileError(
            f"{file.path} has {config['num_hidden_layers']} layers, {num_further} of them for further tokens, with "
            f"{value_heads} value heads.",
            remedy="Download the file again, or convert the model again.",
        )
    config["num_hidden_layers"] = num_layers
    listed = file.array(f"{name}.attention.recurrent_layers")
    if listed is None:
        interval = max(1, file.get(f"{name}.full_attention_interval", int, 4))
        keeps_state = [(index + 1) % interval > 0 for index in range(num_layers)]
    else:
        keeps_state = [bool(flag) for flag in listed.tolist()[:num_layers]]
    config["layer_types"] = ["linear_attention" if flag else "full_attention" for flag in keeps_state]
    config["linear_value_head_dim"] = file.get(f"{name}.ssm.inner_size", int) // value_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotary: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": config.pop("rope_theta", 1e7),
        "partial_rotary_factor": file.get(f"{name}.rope.dimension_count", int, head_dim) / max(1, head_dim),
    }
    if (sections := file.array(f"{name}.rope.dimension_sections")) is not None:
        rotary |= {"mrope_section": [size for size in sections.tolist() if size], "mrope_interleaved": True}
    config["rope_parameters"] = rotary
