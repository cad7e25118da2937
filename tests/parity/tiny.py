"""Tiny random-weight models on disk: a transformers config, float32 safetensors, and a tokenizer of plain words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 320

HYBRID: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "sliding_window": 11,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 256,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
"""Full and sliding-window layers in a ratio that no group width divides."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}

CHUNKED: dict[str, Any] = _COMMON | {
    "model_type": "llama4_text",
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_chunk_size": 9,
    "no_rope_layers": [1, 1, 0, 1, 0],
    "intermediate_size": 32,
    "intermediate_size_mlp": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attn_temperature_tuning": True,
    "floor_scale": 16,
    "attn_scale": 0.5,
}
"""Chunks that no block size divides; layers without rotary whose queries grow with the position."""

ALIBI: dict[str, Any] = {
    "model_type": "mpt",
    "vocab_size": VOCAB_SIZE,
    "d_model": 48,
    "n_layers": 4,
    "n_heads": 6,
    "max_seq_len": 256,
}
"""A bias by distance instead of positions, in modules that compute attention themselves."""

LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 256,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
"""Every layer keeps a latent of 24 and a rotary part of 8; YaRN changes the scale of scores."""


def build_model(folder: Path, config: dict[str, Any], *, seed: int = 0, spread: float = 0.25) -> torch.nn.Module:
    """Save a random model of `config` in `folder` and return it; `spread` is large enough for varied greedy tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(config)
    hf_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, spread)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCAB_SIZE)
    return model


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer whose words are `w0`, `w1`, ... separated by spaces; ids 0 to 2 are pad, eos and bos."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {f"w{index}": index for index in range(3, vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {"eos_token": "<eos>", "bos_token": "<bos>", "pad_token": "<pad>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields | {"tokenizer_class": "PreTrainedTokenizerFast"}))
