"""Tiny random models of transformers, written as GGUF files the way llama.cpp's converters write them.

The converters' formulas are written out here a second time, in the direction in which they convert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap

VOCAB_SIZE = 96
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 32, 64, 4, 4, 2, 8
WINDOW = 7

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
SHORT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 128,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}

Writer = gguf.GGUFWriter
Tensors = Iterator[tuple[str, torch.Tensor]]
Describe = Callable[[Writer, Any], None]
Convert = Callable[[str, torch.Tensor, Any], Tensors]
"""(GGUF name, parameter, config) -> what the file holds."""


def plain(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor


def permuted(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
        if part in name:
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    yield name, tensor


def one_added(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def conv1d(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    transposed = name.endswith(("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"))
    yield name, tensor.T if transposed else tensor


def heads_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if "attn_qkv" in name:
        by_head = tensor.reshape(HEADS, 3, -1, *tensor.shape[1:])
        tensor = torch.cat([by_head[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
    yield name, tensor


def groups_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if "attn_qkv" in name:
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        by_group = tensor.view(groups, HEADS // groups + 2, HEAD, HIDDEN)
        parts = (by_group[:, :-2], by_group[:, [-2]], by_group[:, [-1]])
        tensor = torch.cat([part.reshape(-1, HIDDEN) for part in parts])
    yield name, tensor


def experts_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if name.endswith("gate_up_proj"):
        block = name.split(".")[2]
        gate, up = tensor[:, : tensor.shape[1] // 2], tensor[:, tensor.shape[1] // 2 :]
        yield f"blk.{block}.ffn_gate_exps.weight", gate
        yield f"blk.{block}.ffn_up_exps.weight", up
    elif name.endswith("e_score_correction_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", tensor
    else:
        yield name + (".weight" if name.endswith("_exps") else ""), tensor


def permuted_experts_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    for part, values in experts_apart(name, tensor, config):
        yield from permuted(part, values, config)


def gpt_oss(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    block = name.removeprefix("model.layers.").partition(".")[0]
    if name.endswith("gate_up_proj"):
        yield f"blk.{block}.ffn_gate_exps.weight", tensor[:, :, ::2].transpose(1, 2)
        yield f"blk.{block}.ffn_up_exps.weight", tensor[:, :, 1::2].transpose(1, 2)
    elif name.endswith("gate_up_proj_bias"):
        yield f"blk.{block}.ffn_gate_exps.bias", tensor[:, ::2]
        yield f"blk.{block}.ffn_up_exps.bias", tensor[:, 1::2]
    elif name.endswith("ffn_down_exps"):
        yield f"{name}.weight", tensor.transpose(1, 2)
    elif name.endswith("down_proj_bias"):
        yield f"blk.{block}.ffn_down_exps.bias", tensor
    else:
        yield name + (".weight" if name.endswith("attn_sinks") else ""), tensor


def mamba(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if name.endswith("ssm_a"):
        tensor = -torch.exp(tensor)
    yield name, tensor.squeeze(1) if "conv" in name and tensor.dim() == 3 else tensor


def lfm2(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor.squeeze(1) if name.endswith("shortconv.conv.weight") else tensor


def describe_nothing(writer: Writer, config: Any) -> None:
    pass


def describe_scales(writer: Writer, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def describe_window(writer: Writer, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    for cap, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("logit_scale", writer.add_logit_scale),
    ):
        if getattr(config, cap, None) is not None:
            add(getattr(config, cap))


def describe_logit_scale(writer: Writer, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)


def describe_experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("qwen3_moe", "qwen2_moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "minimax_m2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def describe_gpt_oss(writer: Writer, config: Any) -> None:
    describe_experts(writer, config)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])


def describe_mamba(writer: Writer, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_ssm_dt_b_c_rms(False)


def describe_lfm2(writer: Writer, config: Any) -> None:
    writer.add_shortconv_l_cache(config.conv_L_cache)


def describe_parallel(writer: Writer, config: Any) -> None:
    writer.add_parallel_residual(config.use_parallel_residual)


def describe_clamp(writer: Writer, config: Any) -> None:
    writer.add_clamp_kqv(config.clip_qkv)


class Case(NamedTuple):
    """One architecture: what transformers calls it, a config, and what its converter does."""

    architecture: str
    model_type: str
    fields: dict[str, Any]
    convert: Convert = plain
    describe: Describe = describe_nothing
    uses_layer_norm: bool = False


PARTIAL = {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
PARTIAL["rope_parameters"]["partial_rotary_factor"] = 0.5  # type: ignore[index]

CASES: dict[str, Case] = {
    "llama": Case("llama", "llama", COMMON, permuted),
    "llama with biases": Case("llama", "llama", COMMON | {"attention_bias": True, "mlp_bias": True}, permuted),
    "mistral": Case("llama", "mistral", COMMON | {"sliding_window": None, "head_dim": 12}, permuted),
    "mixtral": Case(
        "llama", "mixtral", COMMON | EXPERTS | {"sliding_window": None, "num_local_experts": 4},
        permuted_experts_apart, describe_experts,
    ),
    "gemma": Case("gemma", "gemma", COMMON | {"head_dim": HEAD, "tie_word_embeddings": True}, one_added),
    "gemma2": Case(
        "gemma2", "gemma2",
        COMMON | {"head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 3.0, "tie_word_embeddings": True,
                  "query_pre_attn_scalar": 16},
        one_added, describe_window,
    ),
    "gemma3": Case(
        "gemma3", "gemma3_text",
        COMMON | {"head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 6, "tie_word_embeddings": True,
                  "query_pre_attn_scalar": 16},
        one_added, describe_window,
    ),
    "qwen2": Case("qwen2", "qwen2", COMMON | {"use_sliding_window": False}),
    "qwen2moe": Case(
        "qwen2moe", "qwen2_moe",
        COMMON | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
        experts_apart, describe_experts,
    ),
    "qwen3": Case("qwen3", "qwen3", COMMON | {"head_dim": 16}),
    "qwen3moe": Case(
        "qwen3moe", "qwen3_moe",
        COMMON | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": HEAD, "norm_topk_prob": True},
        experts_apart, describe_experts,
    ),
    "phi2": Case("phi2", "phi", COMMON | PARTIAL, uses_layer_norm=True),
    "phi3": Case("phi3", "phi3", COMMON | {"sliding_window": None}),
    "starcoder": Case("starcoder", "gpt_bigcode", SHORT, uses_layer_norm=True),
    "starcoder2": Case("starcoder2", "starcoder2", COMMON | {"sliding_window": None}, uses_layer_norm=True),
    "stablelm": Case("stablelm", "stablelm", COMMON | PARTIAL | {"use_qkv_bias": True}, uses_layer_norm=True),
    "olmo": Case("olmo", "olmo", COMMON | {"clip_qkv": 0.7}, permuted, describe_clamp, uses_layer_norm=True),
    "olmo2": Case("olmo2", "olmo2", COMMON),
    "olmoe": Case("olmoe", "olmoe", COMMON | EXPERTS | {"num_experts": 4}, experts_apart, describe_experts),
    "gpt2": Case("gpt2", "gpt2", SHORT | {"tie_word_embeddings": True}, conv1d, uses_layer_norm=True),
    "gpt2 with a head": Case("gpt2", "gpt2", SHORT | {"tie_word_embeddings": False}, conv1d, uses_layer_norm=True),
    "gptneox": Case(
        "gptneox", "gpt_neox", COMMON | PARTIAL | {"use_parallel_residual": True}, heads_apart, describe_parallel,
        uses_layer_norm=True,
    ),
    "gptneox in sequence": Case(
        "gptneox", "gpt_neox", COMMON | PARTIAL | {"use_parallel_residual": False}, heads_apart, describe_parallel,
        uses_layer_norm=True,
    ),
    "bloom": Case(
        "bloom", "bloom",
        {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "pad_token_id": 0},
        heads_apart, uses_layer_norm=True,
    ),
    "falcon 7B": Case(
        "falcon", "falcon", COMMON | {"tie_word_embeddings": True, "multi_query": True}, groups_apart,
        uses_layer_norm=True,
    ),
    "falcon 40B": Case(
        "falcon", "falcon",
        COMMON | {"tie_word_embeddings": True, "new_decoder_architecture": True, "num_kv_heads": KV_HEADS},
        groups_apart, uses_layer_norm=True,
    ),
    "falcon 11B": Case(
        "falcon", "falcon",
        COMMON | {"tie_word_embeddings": True, "new_decoder_architecture": True, "num_kv_heads": KV_HEADS,
                  "num_ln_in_parallel_attn": 1},
        groups_apart, uses_layer_norm=True,
    ),
    "nemotron": Case("nemotron", "nemotron", COMMON | PARTIAL, one_added, uses_layer_norm=True),
    "gpt-oss": Case(
        "gpt-oss", "gpt_oss",
        COMMON | EXPERTS | {"head_dim": HEAD, "sliding_window": WINDOW, "num_local_experts": 4,
                            "rope_parameters": YARN | {"truncate": False}},
        gpt_oss, describe_gpt_oss,
    ),
    "minimax-m2": Case(
        "minimax-m2", "minimax_m2", COMMON | EXPERTS | PARTIAL | {"head_dim": HEAD, "num_local_experts": 4},
        experts_apart, describe_experts,
    ),
    "lfm2": Case(
        "lfm2", "lfm2",
        COMMON | {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "tie_word_embeddings": True,
                  "block_auto_adjust_ff_dim": False},
        lfm2, describe_lfm2,
    ),
    "mamba": Case(
        "mamba", "mamba",
        {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "state_size": 8, "expand": 2,
         "time_step_rank": 4, "tie_word_embeddings": True},
        mamba, describe_mamba,
    ),
    "granite": Case(
        "granite", "granite",
        COMMON | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.7,
                  "logits_scaling": 2.5},
        permuted, describe_scales,
    ),
    "command-r": Case(
        "command-r", "cohere", COMMON | {"tie_word_embeddings": True, "use_qk_norm": True, "logit_scale": 0.3},
        plain, describe_logit_scale, uses_layer_norm=True,
    ),
    "cohere2": Case(
        "cohere2", "cohere2", COMMON | {"tie_word_embeddings": True, "sliding_window": WINDOW, "logit_scale": 0.3},
        plain, describe_window, uses_layer_norm=True,
    ),
    "glm4": Case("glm4", "glm4", COMMON | PARTIAL | {"head_dim": HEAD}),
    "smollm3": Case("smollm3", "smollm3", COMMON, permuted),
    "seed_oss": Case("seed_oss", "seed_oss", COMMON | {"head_dim": 16, "attention_out_bias": True}),
    "arcee": Case("arcee", "arcee", COMMON, permuted),
    "ernie4_5": Case("ernie4_5", "ernie4_5", COMMON | {"head_dim": HEAD, "use_bias": True}),
}  # fmt: skip


def random_model(case: Case) -> Any:
    """transformers' model in float32. Vectors are random, too: norms of one hide mistakes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(case.model_type, **case.fields)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and not name.endswith("A_log"):
                tensor.add_(torch.randn_like(tensor) * 0.1)
    return model


def write_gguf(path: Path, case: Case, model: Any, *, tensors_per_shard: int = 0) -> None:
    """The file that the architecture's converter writes for `model`, float32 throughout; 0 means no shards."""
    config = model.config
    writer = Writer(path, case.architecture, split_max_tensors=tensors_per_shard)
    _describe(writer, case, config)
    case.describe(writer, config)
    known = {name: MODEL_ARCH(key) for key, name in MODEL_ARCH_NAMES.items()}
    names = TensorNameMap(known[case.architecture], config.num_hidden_layers)
    for parameter, values in model.state_dict().items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = _tensor_name(names, parameter)
        for stored, tensor in case.convert(name, values, config):
            writer.add_tensor(stored, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensor_name(names: TensorNameMap, parameter: str) -> str:
    for known in (parameter, parameter.partition(".")[2]):
        if found := names.get_name(known, try_suffixes=(".weight", ".bias")):
            return str(found)
    return parameter


def _describe(writer: Writer, case: Case, config: Any) -> None:
    """What all converters write."""
    heads = getattr(config, "num_attention_heads", 0)
    kv_heads = getattr(config, "num_kv_heads", None) or getattr(config, "num_key_value_heads", heads)
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        kv_heads = 1
    head_dim = getattr(config, "head_dim", None) or (HIDDEN // heads if heads else 0)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "ffn_hidden_size", None) or getattr(config, "intermediate_size", None) or 4 * HIDDEN
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    types = getattr(config, "layer_types", None) or []
    if "conv" in types:
        writer.add_head_count_kv([0 if kind == "conv" else kv_heads for kind in types])
    else:
        writer.add_head_count_kv(kv_heads)
    if heads and "head_dim" in case.fields:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    epsilons = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    epsilon = next((getattr(config, name) for name in epsilons if hasattr(config, name)), 1e-5)
    (writer.add_layer_norm_eps if case.uses_layer_norm else writer.add_layer_norm_rms_eps)(epsilon)
    writer.add_vocab_size(VOCAB_SIZE)
