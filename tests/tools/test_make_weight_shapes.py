"""The table of weights is that of the installed transformers: for a few types on each run, for all in the long tier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.formats.config_fields import config_table
from octavo.planning.parameters import count_tensors, shapes_table, why_uncounted
from tools.make_weight_shapes import find_shapes


def _is_fresh(model_type: str) -> None:
    architecture = config_table()[model_type].architecture
    assert architecture is not None
    # Three models give the formulas, and a fourth with other numbers is counted by them and compared.
    assert find_shapes(model_type, architecture) == shapes_table()[model_type], "run python -m tools.make_weight_shapes"


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type", ["llama", "gemma3_text", "gemma4_text", "qwen3_moe", "falcon_mamba", "jamba", "deepseek_v2"]
)
def test_a_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)


@pytest.mark.long
@pytest.mark.parametrize("model_type", sorted(shapes_table()))
def test_every_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)


@pytest.mark.slow
def test_a_config_that_says_nothing_is_counted_as_one_that_states_the_defaults() -> None:
    different, refused = [], []
    for model_type in shapes_table():
        stated = CONFIG_MAPPING[model_type]().to_dict() | {"model_type": model_type}
        counted = [count_tensors(config, "float32") for config in ({"model_type": model_type}, stated)]
        totals = [None if tensors is None else sum(tensor.num_bytes for tensor in tensors) for tensors in counted]
        if totals[0] is None and totals[1] is not None:
            refused.append(model_type)
        if totals[0] not in (None, totals[1]):
            different.append((model_type, *totals, why_uncounted(stated)))
    assert not different
    # The class makes some fields of others in its own way: those a config must state.
    assert all(why_uncounted({"model_type": model_type}) for model_type in refused)
    assert not {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma3_text", "gpt_oss"} & {*refused}


_SLIDING, _FULL = "sliding_attention", "full_attention"
GEMMA_4: dict[str, dict[str, Any]] = {
    "small, with caches that are shared": {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
        "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
        "layer_types": ([_SLIDING] * 4 + [_FULL]) * 7,
    },
    "dense, with keys as values": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0, "layer_types": ([_SLIDING] * 5 + [_FULL]) * 10,
    },
    "experts": {
        "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "enable_moe_block": True,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "hidden_size_per_layer_input": 0,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", GEMMA_4)
def test_heads_of_full_layers_are_counted_as_published_and_as_transformers_saves_them(name: str) -> None:
    published = GEMMA_4[name] | {"model_type": "gemma4_text"}
    config = CONFIG_MAPPING["gemma4_text"](**GEMMA_4[name])
    with torch.device("meta"):
        model = transformers.Gemma4ForCausalLM(config)
    expected = sum(parameter.numel() for parameter in model.parameters())  # a tied head once
    saved = config.to_dict() | {"model_type": "gemma4_text"}
    assert saved["per_layer_config"]
    for stated in (published, saved, {"model_type": "gemma4", "text_config": published}):
        counted = count_tensors(stated, "float32")
        assert counted is not None, why_uncounted(stated)
        assert sum(tensor.num_bytes for tensor in counted) == 4 * expected


def test_layers_that_a_config_makes_unlike_each_other_are_not_counted() -> None:
    for model_type, entries in (
        ("llama", {"3": {"num_key_value_heads": 2}}),
        ("gemma4_text", {"5": {"head_dim": 512}, "11": {"head_dim": 256}}),
        ("gemma4_text", {"5": {"head_dim": 512, "num_key_value_heads": 2}}),  # without attention_k_eq_v
    ):
        config = {"model_type": model_type, "per_layer_config": entries}
        assert count_tensors(config, "float32") is None
        assert "per_layer_config" in why_uncounted(config)
