"""What converters write into a GGUF file's metadata beside what all of them do, for `gguf_converter.py`."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

HIDDEN, INNER = 32, 64

Writer = gguf.GGUFWriter


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


def describe_gemma4(writer: Writer, config: Any) -> None:
    """Lengths without a suffix are those of full layers."""
    types, full = config.layer_types, config.per_layer_config["full_attention"]
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in types])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.use_double_wide_mlp:
        num_own = len(types) - config.num_kv_shared_layers
        writer.add_feed_forward_length([INNER * (1 if index < num_own else 2) for index in range(len(types))])
    if config.attention_k_eq_v:
        heads = {"full_attention": full.num_key_value_heads, "sliding_attention": config.num_key_value_heads}
        writer.add_head_count_kv([heads[kind] for kind in types])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    half = full.head_dim // 2
    num_rotated = int(half * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * num_rotated + [1e30] * (half - num_rotated), np.float32))


def describe_qwen35(writer: Writer, config: Any) -> None:
    """One more layer than the model has, for the token after the next."""
    writer.add_block_count(config.num_hidden_layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_tensor(f"blk.{config.num_hidden_layers}.attn_q.weight", np.zeros((4, HIDDEN), np.float32))
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(2)
    writer.add_rope_dimension_sections([2, 1, 1, 0])
    if config.model_type.endswith("moe_text"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


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
