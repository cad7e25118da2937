"""What a transformers config says about each layer's cache."""

from __future__ import annotations

from typing import Any

from octavo.config import LayerConfig, ModelConfig


def model_config_from_hf(config: dict[str, Any], *, name: str, weight_bytes: int | None = None) -> ModelConfig:
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    num_layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    pattern = 6 if config["model_type"] == "gemma3_text" else 0
    types = config.get("layer_types") or [
        "sliding_attention" if pattern and (i + 1) % pattern else "full_attention" for i in range(num_layers)
    ]
    layers = tuple(
        LayerConfig(
            kind="sliding_window" if kind == "sliding_attention" else "full",
            window=window if kind == "sliding_attention" else None,
            num_kv_heads=kv_heads,
            head_size=head_dim,
        )
        for kind in types
    )
    architecture = {"gemma3_text": "Gemma3ForCausalLM", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
    return ModelConfig(
        name=name,
        architecture=(config.get("architectures") or [architecture.get(config["model_type"], "")])[0],
        model_type=config["model_type"],
        dtype=config.get("dtype") or config.get("torch_dtype") or "bfloat16",
        num_layers=num_layers,
        hidden_size=config["hidden_size"],
        num_heads=heads,
        vocab_size=config["vocab_size"],
        max_position=config.get("max_position_embeddings", 0),
        layers=layers,
        weight_bytes=weight_bytes,
    )
