"""Weights counted from configs: published totals, and transformers' own models with other numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.formats.config_fields import config_table
from octavo.planning.parameters import WITHOUT_FORMULAS, count_tensors, evaluate, shapes_table, text_part, why_uncounted
from tools.imports import ROOT

PLAIN: dict[str, Any] = {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 128256}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.1-8B": (
        PLAIN | {
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        8_030_261_248,
    ),
    "Llama-3.1-70B": (
        PLAIN | {
            "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
        70_553_706_496,
    ),
    "Qwen3-30B-A3B": (
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "vocab_size": 151936, "num_experts": 128, "tie_word_embeddings": False,
        },
        30_532_122_624,
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "num_local_experts": 32, "tie_word_embeddings": False,
        },
        20_914_757_184,
    ),
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
            "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128, "v_head_dim": 128, "tie_word_embeddings": False,
        },
        671_026_404_352,
    ),
}  # fmt: skip
"""Config fields and the number of parameters."""


def total(config: dict[str, Any]) -> int:
    tensors = count_tensors(config, "bfloat16")
    assert tensors is not None
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    return sum(tensor.num_bytes for tensor in tensors) // 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_number_of_parameters(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert total(config) == parameters


def test_of_a_composite_model_the_text_part_is_counted_and_a_tied_head_once() -> None:
    config = json.loads((ROOT / "docs/examples/gemma-3-27b.json").read_text())
    assert total(config) == 27_009_346_304
    assert text_part(config)[1] == "gemma3_text"


def test_a_packed_model_is_not_counted_and_says_why() -> None:
    config = PUBLISHED["DeepSeek-V3"][0] | {"quantization_config": {"quant_method": "fp8"}}
    assert count_tensors(config, "bfloat16") is None
    assert "quantization_config" in why_uncounted(config)


@pytest.mark.parametrize("model_type", sorted(WITHOUT_FORMULAS))
def test_a_type_without_formulas_is_not_counted_and_names_the_field(model_type: str) -> None:
    assert count_tensors({"model_type": model_type}, "bfloat16") is None
    assert f"by the {WITHOUT_FORMULAS[model_type]} of a {model_type} model" in why_uncounted({"model_type": model_type})


def test_all_types_that_can_be_planned_are_counted_but_these() -> None:
    """`families.json` has them; of a composite one its text part is counted."""
    families: dict[str, str] = json.loads((ROOT / "tests/planning/families.json").read_text())
    planned = {name for name, told in families.items() if not told.startswith("refused")}
    texts = {facts.text[1] if (facts := config_table()[name]).text else name for name in planned}
    assert texts - set(shapes_table()) == set(WITHOUT_FORMULAS)
    assert set(shapes_table()) <= set(config_table())


def test_fields_that_switch_tensors_on_and_off_are_heeded() -> None:
    config = PUBLISHED["Llama-3.1-8B"][0]
    plain, heads, kv_heads, size = total(config), 32, 8, 128
    assert total(config | {"attention_bias": True}) - plain == 32 * (size * (heads + 2 * kv_heads) + 4096)
    assert total(config | {"mlp_bias": True}) - plain == 32 * (2 * 14336 + 4096)
    assert plain - total(config | {"tie_word_embeddings": True}) == 128256 * 4096
    assert total(config | {"tie_word_embeddings": None}) == plain


def test_the_whole_says_whether_a_composite_models_head_is_tied() -> None:
    config = json.loads((ROOT / "docs/examples/gemma-3-27b.json").read_text())
    untied = total({**config, "tie_word_embeddings": False})
    assert untied - total(config) == 262208 * 5376


def test_a_latent_without_a_query_rank_projects_at_once() -> None:
    """DeepSeek V2 Lite, whose published total is 15,706,484,224."""
    config = {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
        "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "tie_word_embeddings": False,
    }  # fmt: skip
    assert total(config) == 15_706_484_224


def test_what_was_not_tried_is_not_counted_and_the_field_is_named() -> None:
    jamba = {"model_type": "jamba", "attn_layer_offset": 5}
    assert count_tensors(jamba, "bfloat16") is None
    assert "attn_layer_offset is 5" in why_uncounted(jamba)
    deepseek = PUBLISHED["DeepSeek-V3"][0] | {"hidden_size": 0}
    assert count_tensors(deepseek, "bfloat16") is None
    assert why_uncounted(deepseek)


def test_expressions_are_sums_of_products() -> None:
    assert evaluate("2*a*b+c", {"a": 3, "b": 5, "c": 7}) == 37
    with pytest.raises(ValueError, match=r"a\*b"):
        evaluate("a*b", {"a": None, "b": 1})
