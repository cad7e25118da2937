"""The fields of published config.json files that a KV cache depends on, by the names that the oracle's cases use."""

from __future__ import annotations

from typing import Any


def _plain(
    model_type: str, layers: int, hidden: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


def _gemma3(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    """The larger Gemma 3 models are composite, and their text part omits most fields."""
    text = {
        "model_type": "gemma3_text", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "sliding_window": 1024,
    }  # fmt: skip
    return {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": text, "vision_config": {}}


CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": _plain("llama", 32, 4096, 32, 8, 128256, max_position_embeddings=131072),
    "Llama-3.1-70B": _plain("llama", 80, 8192, 64, 8, 128256, max_position_embeddings=131072),
    "Qwen2.5-7B": _plain(
        "qwen2", 28, 3584, 28, 4, 152064, sliding_window=131072, use_sliding_window=False, max_window_layers=28
    ),
    "Qwen3-8B": _plain("qwen3", 36, 4096, 32, 8, 151936, head_dim=128, sliding_window=None, max_window_layers=36),
    "Qwen3-32B": _plain("qwen3", 64, 5120, 64, 8, 151936, head_dim=128, use_sliding_window=False),
    "Qwen3-30B-A3B": _plain("qwen3_moe", 48, 2048, 32, 4, 151936, head_dim=128, use_sliding_window=False),
    "Mistral-7B-v0.1": _plain("mistral", 32, 4096, 32, 8, 32000, sliding_window=4096, max_position_embeddings=32768),
    "Gemma-2-9b": _plain("gemma2", 42, 3584, 16, 8, 256000, head_dim=256, sliding_window=4096),
    "Gemma-3-270m": _plain("gemma3_text", 18, 640, 4, 1, 262144, head_dim=256, sliding_window=512),
    "Gemma-3-1b": _plain(
        "gemma3_text", 26, 1152, 4, 1, 262144, head_dim=256, sliding_window=512, sliding_window_pattern=6
    ),
    "Gemma-3-4b": _gemma3(34, 2560, 8, 4, 256),
    "Gemma-3-27b": _gemma3(62, 5376, 32, 16, 128),
    "gpt-oss-20b": _plain("gpt_oss", 24, 2880, 64, 8, 201088, head_dim=64, sliding_window=128),
    "Llama-4-Scout": {
        "model_type": "llama4",
        "text_config": _plain(
            "llama4_text", 48, 5120, 40, 8, 202048, head_dim=128, attention_chunk_size=8192, no_rope_layers=[]
        ),
    },
    "DeepSeek-V3": _plain(
        "deepseek_v3", 61, 7168, 128, 128, 129280, kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=128
    ),
    "Command-R7B-12-2024": _plain(
        "cohere2", 32, 4096, 32, 8, 256000, head_dim=128, sliding_window=4096, sliding_window_pattern=4
    ),
    "SmolLM2-135M": _plain("llama", 30, 576, 9, 3, 49152),
    "Phi-3-mini-4k": _plain("phi3", 32, 3072, 32, 32, 32064, sliding_window=2047),
    "Phi-4": _plain("phi3", 40, 5120, 40, 10, 100352, sliding_window=None),
    "OLMo-2-7B": _plain("olmo2", 32, 4096, 32, 32, 100352),
    "OLMo-3-32B": _plain("olmo3", 64, 5120, 40, 8, 100278, sliding_window=4096),
    "Qwen3-Next-80B-A3B": _plain("qwen3_next", 48, 2048, 16, 2, 151936, head_dim=256, full_attention_interval=4),
    "Jamba-v0.1": _plain("jamba", 32, 4096, 32, 8, 65536, attn_layer_period=8, attn_layer_offset=4, mamba_expand=2),
    "Granite-4.0-H-Small": _plain(
        "granitemoehybrid", 40, 4096, 32, 8, 100352, mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128,
        layer_types=[("attention" if index in (5, 15, 25, 35) else "mamba") for index in range(40)],
    ),
}  # fmt: skip
