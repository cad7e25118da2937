"""Tiny random models of many architectures, and what each of their layers keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from octavo.attention.backend import AttentionBackend
from octavo.attention.torch_reference import TorchReference
from octavo.config import LayerConfig, ModelConfig, ModelSource
from octavo.formats.source import ModelFiles
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model

VOCAB_SIZE = 160
MAX_LENGTH = 96
WINDOW = 7
LATENT = 24

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


class Architecture(NamedTuple):
    """A config without its `model_type`, and each layer's kind: `F` full, `S` window, `C` chunk, `L` latent."""

    fields: dict[str, Any]
    kinds: str = "FFFF"
    num_kv_heads: int = 2
    head_size: int = 8
    shared_from: tuple[int | None, ...] = (None,) * 4
    """By layer: the earlier layer whose cache it reads."""
    reference: str = "eager"
    """transformers' own attention to compare with."""

    def model_config(self, model_type: str, **changes: Any) -> ModelConfig:
        layer = {"num_kv_heads": self.num_kv_heads, "head_size": self.head_size} | changes
        kinds = {
            "F": LayerConfig(kind="full", **layer),
            "S": LayerConfig(kind="sliding_window", window=WINDOW, **layer),
            "C": LayerConfig(kind="chunked_local", chunk=WINDOW, **layer),
            "L": LayerConfig(kind="mla", head_size_v=LATENT, **layer),
        }
        return ModelConfig(
            name=model_type,
            architecture=model_type,
            model_type=model_type,
            dtype="float32",
            num_layers=len(self.kinds),
            hidden_size=32,
            num_heads=4,
            vocab_size=VOCAB_SIZE,
            max_position=MAX_LENGTH,
            layers=tuple(
                msgspec.structs.replace(kinds[kind], kv_sharing_target=self.shared_from[index] if index < 4 else None)
                for index, kind in enumerate(self.kinds)
            ),
        )


NO_GROUPS = {key: field for key, field in COMMON.items() if key != "num_key_value_heads"}

LATENTS: dict[str, Any] = COMMON | {
    "num_key_value_heads": 4,
    "kv_lora_rank": LATENT,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
LATENT_EXPERTS: dict[str, Any] = LATENTS | {
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": MAX_LENGTH // 4,
}

GPT2_FIELDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": MAX_LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(COMMON | {"tie_word_embeddings": True}),
    "gemma3_text": Architecture(COMMON | {"head_dim": 8, "sliding_window": WINDOW, "layer_types": MIXED}, "SFSF"),
    "gpt_oss": Architecture(
        COMMON | {"head_dim": 8, "sliding_window": WINDOW, "layer_types": MIXED, "num_local_experts": 4},
        "SFSF",
    ),
    "mistral": Architecture(COMMON | {"sliding_window": WINDOW}, "SSSS"),
    "mistral-without-window": Architecture(COMMON | {"sliding_window": None}),
    "mixtral": Architecture(COMMON | {"sliding_window": None, "num_local_experts": 4}),
    "qwen2": Architecture(COMMON | {"use_sliding_window": False, "sliding_window": WINDOW}),
    "qwen2-windowed-above": Architecture(
        COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}, "FFSS"
    ),
    "qwen3": Architecture(COMMON | {"head_dim": 16}, head_size=16),
    "qwen3_moe": Architecture(
        COMMON | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    ),
    "gemma": Architecture(COMMON | {"head_dim": 8}),
    "gemma2": Architecture(
        COMMON | {"head_dim": 8, "sliding_window": WINDOW, "layer_types": MIXED, "attn_logit_softcapping": 3.0}, "SFSF"
    ),
    "gemma3n_text": Architecture(
        COMMON
        | {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": MIXED,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.0] * 4,
        },
        "SFSF",
        shared_from=(None, None, 0, 1),
    ),
    "llama4_text": Architecture(
        COMMON
        | {
            "head_dim": 8,
            "attention_chunk_size": WINDOW,
            "no_rope_layers": [1, 0, 1, 0],
            "intermediate_size_mlp": 48,
            "num_local_experts": 4,
            "floor_scale": 11,
        },
        "CFCF",
    ),
    "phi3": Architecture(COMMON | {"sliding_window": None}),
    "phi": Architecture(COMMON),
    "phimoe": Architecture(COMMON | {"sliding_window": WINDOW, "num_local_experts": 4}, "SSSS"),
    "qwen2-windowed-below": Architecture(
        COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 4}
    ),
    "gpt_neox-partial-rotary": Architecture(
        NO_GROUPS | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        num_kv_heads=4,
    ),
    "qwen2-windowed-by-list": Architecture(
        COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": MIXED}, "SFSF"
    ),
    "olmo2": Architecture(COMMON),
    "olmo3": Architecture(COMMON | {"sliding_window": WINDOW, "layer_types": MIXED}, "SFSF"),
    "olmoe": Architecture(COMMON | {"num_experts": 4, "num_experts_per_tok": 2}),
    "cohere2": Architecture(COMMON | {"sliding_window": WINDOW, "layer_types": MIXED}, "SFSF"),
    "smollm3": Architecture(COMMON | {"no_rope_layers": [1, 0, 1, 0]}),
    "granite": Architecture(COMMON | {"logits_scaling": 3.0, "attention_multiplier": 0.2}),
    "starcoder2": Architecture(COMMON | {"sliding_window": WINDOW}, "SSSS"),
    "stablelm": Architecture(COMMON),
    "glm4": Architecture(COMMON | {"head_dim": 8}),
    "nemotron": Architecture(COMMON),
    "exaone4": Architecture(COMMON | {"sliding_window": WINDOW, "layer_types": MIXED}, "SFSF"),
    "opt": Architecture(NO_GROUPS | {"ffn_dim": 48, "word_embed_proj_dim": 32}, num_kv_heads=4),
    "gpt_neox": Architecture(NO_GROUPS, num_kv_heads=4),
    "gpt2": Architecture(GPT2_FIELDS, num_kv_heads=4),
    "gpt2-scaled-by-layer": Architecture(GPT2_FIELDS | {"scale_attn_by_inverse_layer_idx": True}, num_kv_heads=4),
    "bloom": Architecture(
        {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "n_layer": 4, "n_head": 6, "bos_token_id": 1, "eos_token_id": 2},
        num_kv_heads=6,
    ),
    "mpt": Architecture(
        {"vocab_size": VOCAB_SIZE, "d_model": 48, "n_layers": 4, "n_heads": 6, "max_seq_len": MAX_LENGTH},
        num_kv_heads=6,
    ),
    "falcon": Architecture(NO_GROUPS | {"multi_query": True, "alibi": False}, num_kv_heads=1),
    "falcon-grouped": Architecture(NO_GROUPS | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}),
    # Its eager attention adds the bias twice; `generate` takes torch's.
    "falcon-alibi": Architecture(NO_GROUPS | {"multi_query": False, "alibi": True}, num_kv_heads=4, reference="sdpa"),
    "gpt_neo": Architecture(
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "attention_types": [[["local", "global"], 2]],
            "window_size": WINDOW,
            "tie_word_embeddings": False,
            "max_position_embeddings": MAX_LENGTH,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "SFSF",
        num_kv_heads=4,
    ),
    "gpt_neox_japanese": Architecture(NO_GROUPS, num_kv_heads=4),
    "xglm": Architecture(
        {"vocab_size": VOCAB_SIZE, "d_model": 32, "ffn_dim": 48, "num_layers": 4, "attention_heads": 4}
        | {"max_position_embeddings": MAX_LENGTH},
        num_kv_heads=4,
    ),
    "rembert": Architecture(NO_GROUPS | {"is_decoder": True}, num_kv_heads=4),
}
ARCHITECTURES |= {
    name: Architecture(fields, "LLLL", num_kv_heads=1, head_size=LATENT + 8)
    for name, fields in {
        "deepseek_v2": LATENT_EXPERTS | {"topk_method": "greedy"},
        "deepseek_v3": LATENT_EXPERTS,
        "deepseek_v3-yarn": LATENT_EXPERTS | {"rope_parameters": YARN},
        "deepseek_v3-plain-queries": LATENT_EXPERTS
        | {"q_lora_rank": None, "rope_interleave": False, "attention_bias": True},
        "minicpm3": LATENTS | {"scale_emb": 1.0, "dim_model_base": 32},
        "glm4_moe_lite": LATENT_EXPERTS,
        "youtu": LATENTS | {"pad_token_id": None},  # its own initialisation clears that row, loaded or not
        "axk1": LATENT_EXPERTS,
        "sarvam_mla": LATENT_EXPERTS,
        "kimi_linear": LATENT_EXPERTS
        | {
            "linear_attn_config": {
                "full_attn_layers": [1, 2, 3, 4],
                "kda_layers": [],
                "num_heads": 4,
                "head_dim": 8,
                "short_conv_kernel_size": 4,
            }
        },
        "bailing_hybrid": LATENT_EXPERTS | {"num_experts": 8, "layer_types": ["full_attention"] * 4},
        "longcat_flash": {
            **{key: field for key, field in LATENTS.items() if key not in ("num_hidden_layers", "intermediate_size")},
            "num_layers": 2,
            "head_dim": 8,
            "qk_head_dim": 20,
            "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 8,
            "moe_topk": 2,
            "zero_expert_num": 2,
        },
    }.items()
}
"""Model types, some with a suffix after `-` for a variant."""


def save_model(name: str, folder: Path, *, spread: float = 0.15) -> torch.nn.Module:
    """Save a random float32 model in `folder` and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name.partition("-")[0], **ARCHITECTURES[name].fields)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=ARCHITECTURES[name].reference
    ).eval()
    randomise(model, spread)
    model.save_pretrained(folder)
    return model


def randomise(model: torch.nn.Module, spread: float) -> None:
    """Matrices get this standard deviation; every vector becomes random, too: unit norms hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, spread)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def folder_files(folder: Path) -> ModelFiles:
    weights = tuple(sorted(folder.glob("*.safetensors")))
    return ModelFiles(
        kind="folder", path=folder, config_path=folder / "config.json", weight_paths=weights, name=folder.name
    )


def load_folder(
    folder: Path,
    model_config: ModelConfig,
    *,
    source: ModelSource | None = None,
    backend: AttentionBackend | None = None,
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    return load_model(
        source or ModelSource(model=str(folder)),
        folder_files(folder),
        model_config,
        device=torch.device("cpu"),
        dtype=dtype,
        backend=backend or TorchReference(),
        block_size=4,
        kv_cache_dtype="auto",
    )


def random_prompts(lengths: tuple[int, ...], *, seed: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
