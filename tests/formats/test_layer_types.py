from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.formats.config_fields import ConfigFields, config_table
from octavo.formats.layer_types import layer_types, sliding_window

LETTERS = {"full_attention": "F", "sliding_attention": "S", "chunked_attention": "C", "linear_attention": "L"}


def types(model_type: str, num_layers: int | None = 8, **values: Any) -> str:
    """The layer types as letters; lower case for those of another kind."""
    if num_layers is not None:
        values["num_hidden_layers"] = num_layers
    fields = ConfigFields(values, model_type, config_table()[model_type])
    return "".join(LETTERS.get(name, name[0]) for name in layer_types(fields))


@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        # listed
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"] * 4}, "FSFSFSFS"),
        ("zamba2", {"layers_block_type": ["mamba", "attention", "mamba", "mamba"] * 2}, "LFLLLFLL"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*-MEM"}, "LmLFmLmL"),
        # one type for all
        ("llama", {}, "FFFFFFFF"),
        ("mistral", {"sliding_window": 64}, "SSSSSSSS"),
        ("mistral", {"sliding_window": None}, "FFFFFFFF"),
        # OLMoE hands a window to its attention, which its mask ignores
        ("olmoe", {"sliding_window": 64}, "FFFFFFFF"),
        # a window switched off, and one from some layer on
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0}, "FFFFFFFF"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 6}, "FFFFFFSS"),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 5}, "SFSFSFFF"),
        # patterns of classes and their fields
        ("gemma2", {}, "SFSFSFSF"),
        ("gemma3_text", {}, "SSSSSFSS"),
        ("gemma3_text", {"sliding_window_pattern": 3}, "SSFSSFSS"),
        ("cohere2", {}, "SSSFSSSF"),
        ("cohere2", {"sliding_window_pattern": 2}, "SFSFSFSF"),
        ("gpt_oss", {}, "SFSFSFSF"),
        ("beam", {}, "SSSSSFSF"),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": 4}, "SSSFSSSF"),
        ("exaone4", {"sliding_window": None}, "FFFFFFFF"),
        ("llama4_text", {"attention_chunk_size": 64}, "CCCFCCCF"),
        ("llama4_text", {"attention_chunk_size": 64, "no_rope_layers": [1, 0] * 4}, "CFCFCFCF"),
        ("llama4_text", {"attention_chunk_size": None}, "FFFFFFFF"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 64}, "FFFSFFFS"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}, "LFLLLFLL"),
        ("bamba", {"attn_layer_indices": [2, 7]}, "LLFLLLLF"),
        ("lfm2", {"full_attn_idxs": [0, 3]}, "FccFcccc"),
        ("qwen3_next", {}, "LLLFLLLF"),
        ("qwen3_next", {"full_attention_interval": 2}, "LFLFLFLF"),
        ("olmo_hybrid", {}, "LLLFLLLF"),
        ("recurrent_gemma", {"block_types": ["recurrent", "recurrent", "attention"]}, "LLSLLSLL"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 3], [["local"], 2]]}, "FSFSFSSS"),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [8], "kda_layers": [*range(1, 8)]}}, "LLLLLLLF"),
        ("modernbert-decoder", {}, "FSSFSSFS"),
        ("afmoe", {"global_attn_every_n_layers": 3}, "SSFSSFSS"),
        # the last layer is made full
        ("gemma4_text", {"layer_types": ["sliding_attention"] * 8}, "SSSSSSSF"),
    ],
)  # fmt: skip
def test_types(model_type: str, values: dict[str, Any], expected: str) -> None:
    assert types(model_type, **values) == expected


@pytest.mark.parametrize(
    ("model_type", "values", "field"),
    [
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": "many"}, "num_hidden_layers"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("zamba2", {}, "layer_types"),
        ("nemotron_h", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
        ("gemma3_text", {"sliding_window_pattern": "LLG"}, "sliding_window_pattern"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types"),
        ("gpt_neo", {"attention_types": [[["sparse"], 8]]}, "attention_types"),
        ("gpt_neo", {"attention_types": [[["global"], 10**9]]}, "attention_types"),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [1]}}, "linear_attn_config"),
        ("kimi_linear", {"linear_attn_config": 3}, "linear_attn_config"),
        ("recurrent_gemma", {"block_types": ["other"]}, "block_types"),
        ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(model_type: str, values: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"model has {field} = ") as caught:
        types(model_type, **({"num_layers": None} if "num_hidden_layers" in values else {}), **values)
    assert caught.value.numbers["field"] == field


@pytest.mark.parametrize(
    ("model_type", "values", "window"),
    [
        ("mistral", {"sliding_window": 64}, 64),
        ("mistral", {"sliding_window": None}, None),
        ("qwen2_moe", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("gpt_neo", {"window_size": 64}, 64),
        ("gpt_neo", {}, 256),
        ("modernbert-decoder", {"local_attention": 128}, 64),
        ("mimo_v2_flash", {"sliding_window_size": 128}, 129),
        ("recurrent_gemma", {"attention_window_size": 64}, 64),
    ],
)
def test_windows(model_type: str, values: dict[str, Any], window: int | None) -> None:
    assert sliding_window(ConfigFields(values, model_type, config_table()[model_type])) == window
