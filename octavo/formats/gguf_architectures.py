"""How each GGUF architecture reads as a transformers config.

A GGUF file names its fields after llama.cpp, and leaves out what llama.cpp's code for the architecture takes for
granted. Both are here; what converters did to the tensors is undone in `octavo.models.gguf_conversions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.config_fields import MAX_LAYERS
from octavo.formats.gguf import GGUFArray, GGUFHeader
from octavo.formats.gguf_layer_sizes import READS, set_layer_sizes
from octavo.formats.gguf_state_layers import DELTA_READS, delta_states, selective_states, short_convolutions

Setter = Callable[[GGUFHeader, str, dict[str, Any]], None]
"""(file, architecture, config) -> completes the config."""

RMS_NORM = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
NORMED_EXPERTS = EXPERTS | {"expert_weights_norm": "norm_topk_prob"}
LOCAL_EXPERTS = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
}
DELTA_STATES = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
WINDOW_PATTERN = frozenset({"attention.sliding_window_pattern"})
SHORT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "num_key_value_heads": None,
    "head_dim": None,
}


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One GGUF architecture. GGUF fields are written without the architecture's prefix."""

    model_type: str
    norm: tuple[str, str] = RMS_NORM
    """The epsilon of its norms: GGUF field, config field."""
    fields: dict[str, str] = {}
    """Further GGUF fields and the config fields they become."""
    constants: dict[str, Any] = {}
    """Config fields that every file of this architecture has, though transformers' default is another."""
    setters: tuple[Setter, ...] = ()
    reads: frozenset[str] = frozenset()
    """GGUF fields that the setters read."""
    names: dict[str, str | None] = {}
    """Usual config field -> this model type's own name for it; None drops what the type has no field for."""
    has_attention: bool = True


def head_size(file: GGUFHeader, config: dict[str, Any]) -> int:
    """Elements of one head: the config's own number, or the hidden size divided. Raises `ModelFileError` for 0."""
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if size <= 0:
        raise ModelFileError(
            f"{file.path} has heads of {size} elements, its hidden size being {config['hidden_size']}.",
            remedy="Download the file again, or convert the model again.",
        )
    return size


def _head_dim(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """The head size, which older files give as the number of rotated dimensions alone."""
    for key in ("attention.key_length", "rope.dimension_count"):
        if f"{name}.{key}" in file.metadata:
            config["head_dim"] = file.get(f"{name}.{key}", int)
            return


def _partial_rotary(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    head_dim = head_size(file, config)
    config["partial_rotary_factor"] = file.get(f"{name}.rope.dimension_count", int, head_dim) / head_dim


def _biases(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors


def _output_bias(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["attention_out_bias"] = "blk.0.attn_output.bias" in file.tensors


def _mixtral_if_experts(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """llama.cpp calls Mixtral `llama`, too."""
    if file.get(f"{name}.expert_count", int, 0) == 0:
        return
    config["model_type"] = "mixtral"
    config["num_local_experts"] = file.get(f"{name}.expert_count", int)
    config["num_experts_per_tok"] = file.get(f"{name}.expert_used_count", int)
    config["sliding_window"] = None


def _no_extended_rotary(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    for tensor in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if tensor in file.tensors:
            raise UnsupportedModelError(
                f"{file.path} brings rotary factors for short and long sequences ({tensor}).",
                remedy="Use the safetensors version of the model.",
            )


def _window_or_none(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """0 stands for no window."""
    config["sliding_window"] = file.get(f"{name}.attention.sliding_window", int, 0) or None


def _window_pattern(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Which layers are sliding, where the file says it: one flag a layer, or n for all but each n-th."""
    key = f"{name}.attention.sliding_window_pattern"
    if key not in file.metadata:
        return
    num_layers = config["num_hidden_layers"]
    stated = file.metadata[key]
    if isinstance(stated, GGUFArray):
        flags = [bool(flag) for flag in stated.tolist()]
    else:
        period = file.get(key, int)
        flags = [period > 0 and index % period < period - 1 for index in range(min(num_layers, MAX_LAYERS))]
    config["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in flags]


def _query_scale(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Gemma's queries are scaled by the head size, but for the 27B models, whose heads are smaller: by hidden / heads.

    No field says so. Of all published models these alone have heads of 128.
    """
    head_dim = head_size(file, config)
    is_large = head_dim == 128
    config["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"] if is_large else head_dim


def _stablelm(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["use_qkv_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in file.tensors
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in file.tensors


def _falcon(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Falcon 7B has one KV head and one norm a layer, 40B several and two, 11B several and one."""
    num_kv_heads = file.get(f"{name}.attention.head_count_kv", int, 1)
    has_two_norms = "blk.0.attn_norm_2.weight" in file.tensors
    config["new_decoder_architecture"] = num_kv_heads > 1 or has_two_norms
    config["multi_query"] = num_kv_heads == 1
    config["num_ln_in_parallel_attn"] = 2 if has_two_norms else 1
    config["bias"] = "blk.0.attn_qkv.bias" in file.tensors


def _bigcode(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["multi_query"] = file.get(f"{name}.attention.head_count_kv", int, 1) == 1


def _gpt_oss(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """The original checkpoints do not round the borders of YaRN's ramp to whole dimensions; no field says so."""
    config["intermediate_size"] = file.get(f"{name}.expert_feed_forward_length", int)
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False


def _sigmoid_gates(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    """Experts are chosen by a sigmoid (2) alone; softmax (1) is another function."""
    if (function := file.get(f"{name}.expert_gating_func", int, 2)) != 2:
        raise UnsupportedModelError(
            f"{file.path} has {name}.expert_gating_func = {function}; this architecture's gate is a sigmoid (2).",
            remedy="Use the safetensors version of the model.",
        )


def _parallel_residual(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["use_parallel_residual"] = file.get(f"{name}.use_parallel_residual", bool, True)


def _qk_norm(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors


def _linear_bias(file: GGUFHeader, name: str, config: dict[str, Any]) -> None:
    config["use_bias"] = "blk.0.attn_output.bias" in file.tensors


LAYER_NORM = "attention.layer_norm_epsilon"

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        model_type="llama",
        setters=(_head_dim, _biases, _mixtral_if_experts),
        reads=frozenset({"expert_count", "expert_used_count"}),
    ),
    "gemma": Architecture(model_type="gemma", setters=(_head_dim,)),
    # Where a file does not say which layers are sliding, it is the class's own pattern: for Gemma 3 five of six.
    "gemma2": Architecture(
        model_type="gemma2",
        fields=SOFT_CAPS,
        setters=(_head_dim, _query_scale, _window_pattern),
        reads=WINDOW_PATTERN,
    ),
    "gemma3": Architecture(
        model_type="gemma3_text",
        fields=SOFT_CAPS | {"rope.freq_base_swa": "rope_local_base_freq"},
        setters=(_head_dim, _query_scale, _window_pattern),
        reads=WINDOW_PATTERN,
    ),
    "gemma4": Architecture(
        model_type="gemma4_text",
        fields={
            "final_logit_softcapping": "final_logit_softcapping",
            "attention.sliding_window": "sliding_window",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        setters=(_window_pattern, set_layer_sizes),
        reads=READS,
    ),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        fields=NORMED_EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    ),
    "qwen3": Architecture(model_type="qwen3", setters=(_head_dim,)),
    "qwen3moe": Architecture(
        model_type="qwen3_moe", fields=NORMED_EXPERTS, constants={"norm_topk_prob": True}, setters=(_head_dim,)
    ),
    "qwen35": Architecture(model_type="qwen3_5_text", fields=DELTA_STATES, setters=(delta_states,), reads=DELTA_READS),
    "qwen35moe": Architecture(
        model_type="qwen3_5_moe_text",
        fields=DELTA_STATES | EXPERTS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        setters=(delta_states,),
        reads=DELTA_READS,
    ),
    "phi2": Architecture(model_type="phi", norm=(LAYER_NORM, "layer_norm_eps"), setters=(_partial_rotary,)),
    "phi3": Architecture(
        model_type="phi3",
        setters=(_partial_rotary, _window_or_none, _no_extended_rotary),
        reads=frozenset({"attention.sliding_window"}),
    ),
    "starcoder": Architecture(
        model_type="gpt_bigcode", norm=(LAYER_NORM, "layer_norm_epsilon"), setters=(_bigcode,), names=SHORT_NAMES
    ),
    "starcoder2": Architecture(model_type="starcoder2", norm=(LAYER_NORM, "norm_epsilon")),
    "stablelm": Architecture(
        model_type="stablelm", norm=(LAYER_NORM, "layer_norm_eps"), setters=(_partial_rotary, _stablelm)
    ),
    "olmo": Architecture(
        model_type="olmo", norm=(LAYER_NORM, "layer_norm_eps"), fields={"attention.clamp_kqv": "clip_qkv"}
    ),
    "olmo2": Architecture(model_type="olmo2"),
    "olmoe": Architecture(
        model_type="olmoe",
        fields=LOCAL_EXPERTS
        | {"expert_count": "num_experts", "attention.clamp_kqv": "clip_qkv", "expert_weights_norm": "norm_topk_prob"},
    ),
    "gpt2": Architecture(model_type="gpt2", norm=(LAYER_NORM, "layer_norm_epsilon"), names=SHORT_NAMES),
    "gptneox": Architecture(
        model_type="gpt_neox",
        norm=(LAYER_NORM, "layer_norm_eps"),
        setters=(_partial_rotary, _parallel_residual, _biases),
        reads=frozenset({"use_parallel_residual"}),
        names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
    "bloom": Architecture(
        model_type="bloom",
        norm=(LAYER_NORM, "layer_norm_epsilon"),
        names=dict.fromkeys(("num_key_value_heads", "head_dim", "intermediate_size")),
    ),
    "falcon": Architecture(
        model_type="falcon",
        norm=(LAYER_NORM, "layer_norm_epsilon"),
        setters=(_falcon,),
        names={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size", "head_dim": None},
    ),
    "nemotron": Architecture(model_type="nemotron", norm=(LAYER_NORM, "norm_eps"), setters=(_partial_rotary, _biases)),
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        fields=LOCAL_EXPERTS | {"attention.sliding_window": "sliding_window"},
        setters=(_head_dim, _biases, _gpt_oss, _window_pattern),
        reads=WINDOW_PATTERN,
    ),
    "minimax-m2": Architecture(
        model_type="minimax_m2",
        fields=LOCAL_EXPERTS,
        setters=(_partial_rotary, _sigmoid_gates),
        reads=frozenset({"expert_gating_func", "expert_feed_forward_length"}),
    ),
    "lfm2": Architecture(
        model_type="lfm2",
        norm=("attention.layer_norm_rms_epsilon", "norm_eps"),
        fields={"shortconv.l_cache": "conv_L_cache"},
        constants={"block_auto_adjust_ff_dim": False},
        setters=(short_convolutions,),
    ),
    "mamba": Architecture(
        model_type="mamba",
        norm=("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        fields={
            "ssm.conv_kernel": "conv_kernel",
            "ssm.inner_size": "intermediate_size",
            "ssm.state_size": "state_size",
            "ssm.time_step_rank": "time_step_rank",
        },
        setters=(selective_states,),
        names=dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim")),
        has_attention=False,
    ),
    "granite": Architecture(
        model_type="granite",
        fields={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        setters=(_head_dim, _biases),
    ),
    "command-r": Architecture(
        model_type="cohere",
        norm=(LAYER_NORM, "layer_norm_eps"),
        fields={"logit_scale": "logit_scale"},
        setters=(_biases, _qk_norm),
    ),
    "cohere2": Architecture(
        model_type="cohere2",
        norm=(LAYER_NORM, "layer_norm_eps"),
        fields={"logit_scale": "logit_scale", "attention.sliding_window": "sliding_window"},
        setters=(_head_dim, _biases, _window_pattern),
        reads=WINDOW_PATTERN,
    ),
    "glm4": Architecture(model_type="glm4", setters=(_partial_rotary, _biases)),
    # Which layers rotate nothing, one of four, is the class's own pattern.
    "smollm3": Architecture(model_type="smollm3", setters=(_head_dim, _biases)),
    "seed_oss": Architecture(model_type="seed_oss", setters=(_head_dim, _biases, _output_bias)),
    "arcee": Architecture(model_type="arcee", setters=(_head_dim, _biases)),
    "ernie4_5": Architecture(model_type="ernie4_5", setters=(_head_dim, _linear_bias)),
}
"""`general.architecture` -> transformers. Others are refused: their tensors may be permuted in ways not undone here."""
