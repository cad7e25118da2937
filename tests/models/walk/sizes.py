"""Tiny values for the fields of transformers' configs: data for `tiny_model.py`.

`SIZES` holds for every model type that has a field of that name, `OVERRIDES` for one type. A field whose default is
None is left alone (it is derived from others), unless `OPTIONAL` lists it.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 160
MAX_LENGTH = 96
WINDOW = 7
CHUNK = 8
FIRST_TOKEN = 3
"""Ids below are special ones: no prompt holds them."""

_GROUPS: tuple[tuple[Any, str], ...] = (
    (0, "pad_token_id"),
    (1, "bos_token_id n_group topk_group n_shared_experts num_shared_experts moe_num_shared_experts attn_layer_offset"),
    (1, "expert_layer_offset first_k_dense_replace num_dense_layers mamba_n_groups n_groups mamba_ngroups"),
    (2, "eos_token_id num_key_value_heads swa_num_key_value_heads linear_num_key_heads max_window_layers"),
    (2, "sliding_window_pattern global_attn_every_n_layers num_experts_per_tok moe_topk moe_k top_k_experts"),
    (2, "attn_layer_period expert_layer_period layer_group_size"),
    (4, "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads rotary_dim"),
    (4, "encoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads"),
    (4, "swa_num_attention_heads linear_num_value_heads linear_num_heads mamba_num_heads qk_rope_head_dim"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts index_n_heads index_topk"),
    (4, "decoder_layers num_decoder_layers encoder_layers num_encoder_layers"),
    (8, "qk_nope_head_dim v_head_dim index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim"),
    (8, "mamba_d_state ssm_state_size state_size mamba_chunk_size laurel_rank hidden_size_per_layer_input"),
    (8, "shape_embed_dim pronunciation_embed_dim hc_lowrank"),
    (12, "q_lora_rank kv_lora_rank o_lora_rank"),
    (16, "head_dim swa_head_dim kv_channels dim_head mamba_d_head mamba_head_dim rel_extent router_hidden_size"),
    (16, "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size"),
    (16, "dense_intermediate_size shared_experts_intermediate_size moe_shared_expert_intermediate_size"),
    (32, "hidden_size d_model n_embd emb_dim embedding_size word_embed_proj_dim embedding_dim"),
    (32, "input_embedding_size output_embedding_size"),
    (40, "shape_vocab_size pronunciation_vocab_size"),
    (48, "intermediate_size ffn_dim dff dim_ff d_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim"),
    (48, "feed_forward_size intermediate_size_mlp"),
    (64, "mamba_d_ssm encoder_hash_byte_group_vocab"),
    (WINDOW, "sliding_window sliding_window_size window_size attention_window_size keep_window_size"),
    (2 * WINDOW, "local_attention"),
    (CHUNK, "attention_chunk_size"),
    (MAX_LENGTH, "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions context_length"),
    (MAX_LENGTH, "max_source_positions original_max_position_embeddings"),
    (VOCAB_SIZE, "vocab_size vocab_size_per_layer_input decoder_vocab_size unpadded_vocab_size"),
    (True, "is_decoder use_sliding_window"),
)

SIZES: dict[str, Any] = {name: value for value, names in _GROUPS for name in names.split()}

_OPTIONAL = (
    "num_key_value_heads sliding_window bos_token_id eos_token_id pad_token_id unpadded_vocab_size num_experts "
    "decoder_vocab_size word_embed_proj_dim embedding_size n_shared_experts "
    "n_routed_experts num_experts_per_tok"
)
OPTIONAL = frozenset(_OPTIONAL.split())

LATENT_SIZES = {"num_key_value_heads": SIZES["num_attention_heads"], "head_dim": SIZES["qk_rope_head_dim"]}
"""For types with latent attention: every head has keys of its own, and only the rotary part turns."""

_STATES = ["linear_attention", "full_attention"] * 2
_HYBRIDS = ["linear_attention", "linear_attention", "hybrid", "hybrid"]
_WINDOWS = ["sliding_attention", "full_attention"] * 2
_PLAIN_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "layer_types": _WINDOWS,
        "rope_parameters": {name: dict(_PLAIN_ROTARY) for name in _WINDOWS[:2]},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "dots3_note_vision_encoder": {"adapter_in_dim": 32, "adapter_out_dim": 32, "num_hidden_layers": 42},
    "dots3_note_text": {
        **{f"swa_{name}": 4 for name in ("num_attention_heads", "num_key_value_heads")},
        **{f"swa_{name}": 8 for name in ("qk_nope_head_dim", "v_head_dim")},
        **{f"swa_{name}": 12 for name in ("q_lora_rank", "kv_lora_rank", "head_dim")},
    },
    "gemma3n_text": {"layer_types": _WINDOWS, "num_kv_shared_layers": 2},
    "gemma4_assistant": {
        "text_config": {
            "vocab_size_per_layer_input": 0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
            "layer_types": None,
        },
    },
    "gemma4_text": {"global_head_dim": 32, "layer_types": _WINDOWS, "num_kv_shared_layers": 2},
    "gemma4_unified_text": {"global_head_dim": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": _STATES},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "inkling2_loop_text": {
        "loop_layer_index_start": 1, "loop_layer_index_end": 3, "n_layers_per_attn_res_block": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2},
    "ministral": {"head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": _HYBRIDS},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""By model type; for a composite one, by part."""

VARIANTS: dict[str, dict[str, Any]] = {
    "mistral-without-window": {"sliding_window": None},
    "qwen2-without-window": {"use_sliding_window": False},
    "qwen2_moe-without-window": {"use_sliding_window": False},
    "smollm3-without-window": {"use_sliding_window": False},
    "smollm3-rotary-by-list": {"no_rope_layers": [1, 0, 0, 1]},
    "phi3-without-window": {"sliding_window": None},
    "stablelm-partial-rotary": {"rope_parameters": _PLAIN_ROTARY | {"partial_rotary_factor": 0.5}},
    "gpt2-scaled-by-layer": {"scale_attn_by_inverse_layer_idx": True},
    "gpt_bigcode-one-head-each": {"multi_query": False},
    "gemma4_text-without-sharing": {"num_kv_shared_layers": 0, "layer_types": None},
    "gemma4_text-keys-as-values": {
        "num_kv_shared_layers": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    },
    "gemma4_text-experts": {
        "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
    },
    "gemma4_text-wide-mlp": {"use_double_wide_mlp": True},
    "gemma2-low-soft-cap": {"attn_logit_softcapping": 3.0},
}  # fmt: skip
"""Model type and a name for what is different, after `-` (no model type that is varied has one in its name)."""

UNBUILDABLE = frozenset({"musicgen", "musicgen_melody"})
"""transformers' own mapping leads these configs to a class that cannot be built from them."""
