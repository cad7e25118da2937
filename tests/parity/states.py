"""Configs of tiny models that keep states: each family of the mixers that transformers has, in few layers."""

from __future__ import annotations

from typing import Any

from tests.parity.tiny import VOCAB_SIZE

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
DELTA = COMMON | {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA2 = COMMON | {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
ALONE = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "pad_token_id", "bos_token_id", "eos_token_id")}
CONVOLUTIONS = ["conv", "full_attention", "conv", "conv"]

NAMED: dict[str, dict[str, Any]] = {
    "qwen3_next": DELTA | EXPERTS,
    "jamba": COMMON
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "granitemoehybrid": MAMBA2
    | {
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 16,
        "position_embedding_type": "rope",
    },
    "falcon_h1": MAMBA2 | {"head_dim": 8, "mamba_d_ssm": 64},
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS,
    "olmo_hybrid": {name: value for name, value in DELTA.items() if name != "head_dim"},
    "lfm2": COMMON | {"layer_types": CONVOLUTIONS},
    "lfm2_moe": COMMON | EXPERTS | {"layer_types": CONVOLUTIONS, "num_dense_layers": 1},
    "minimax": COMMON
    | {
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "block_size": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "mamba": ALONE | {"num_hidden_layers": 3, "state_size": 4, "time_step_rank": 4},
    "falcon_mamba": ALONE | {"num_hidden_layers": 3, "state_size": 4, "time_step_rank": 4},
    "mamba2": ALONE
    | {"num_hidden_layers": 3, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
}
