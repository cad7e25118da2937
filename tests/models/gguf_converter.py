"""Tiny random models of transformers, written as GGUF files the way llama.cpp's converters write them.

The converters' formulas are written out here a second time, in the direction in which they convert.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap

from tests.models.gguf_descriptions import (
    HIDDEN,
    INNER,
    Writer,
    describe_clamp,
    describe_experts,
    describe_gemma4,
    describe_gpt_oss,
    describe_lfm2,
    describe_logit_scale,
    describe_mamba,
    describe_nothing,
    describe_parallel,
    describe_qwen35,
    describe_scales,
    describe_window,
)
from tests.models.gguf_layouts import (
    HEAD,
    HEADS,
    Tensors,
    conv1d,
    experts_apart,
    gemma4,
    gpt_oss,
    groups_apart,
    heads_apart,
    lfm2,
    mamba,
    one_added,
    permuted,
    permuted_experts_apart,
    plain,
    qwen35,
)

VOCAB_SIZE = 96
LAYERS, KV_HEADS = 4, 2
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

Describe = Callable[[Writer, Any], None]
Convert = Callable[[str, torch.Tensor, Any], Tensors]
"""(GGUF name, parameter, config) -> what the file holds."""


class Case(NamedTuple):
    """One architecture: what transformers calls it, a config, and what its converter does."""

    architecture: str
    model_type: str
    fields: dict[str, Any]
    convert: Convert = plain
    describe: Describe = describe_nothing
    uses_layer_norm: bool = False


GEMMA4 = COMMON | {
    "head_dim": HEAD, "global_head_dim": 2 * HEAD, "sliding_window": WINDOW, "tie_word_embeddings": True,
    "vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
QWEN35 = COMMON | {
    "head_dim": 2 * HEAD, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "layer_types": ["linear_attention", "full_attention"] * 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
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
    "gemma4 with shared layers": Case(
        "gemma4", "gemma4_text",
        GEMMA4 | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        gemma4, describe_gemma4,
    ),
    "gemma4 with keys as values": Case(
        "gemma4", "gemma4_text", GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        gemma4, describe_gemma4,
    ),
    "gemma4 with experts": Case(
        "gemma4", "gemma4_text",
        GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
        gemma4, describe_gemma4,
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
    "qwen35": Case("qwen35", "qwen3_5_text", QWEN35, qwen35, describe_qwen35),
    "qwen35moe": Case(
        "qwen35moe", "qwen3_5_moe_text",
        QWEN35 | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
        qwen35, describe_qwen35,
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
    config = copy.copy(model.config)
    config.allow_global_per_layer_attribute_access = True
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
    writer.add_token_list([f"w{index}" for index in range(VOCAB_SIZE)])  # transformers' reader counts them
