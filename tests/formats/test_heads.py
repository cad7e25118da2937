"""Query heads that KV heads cannot share out, and what is near that mistake."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.formats.hf_config import model_config_from_hf
from tests.formats.published import CONFIGS

LLAMA = CONFIGS["Llama-3.1-8B"]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"num_key_value_heads": 5}, "num_key_value_heads", "5 KV heads do not divide 32 query heads"),
    ({"num_key_value_heads": 64}, "num_key_value_heads", "64 KV heads do not divide 32 query heads"),
    ({"num_key_value_heads": 5, "head_dim": 128}, "num_key_value_heads", "5 KV heads"),
    ({"num_attention_heads": 12}, "num_key_value_heads", "8 KV heads do not divide 12 query heads"),
    ({"num_key_value_heads": [8] * 31 + [5]}, "num_key_value_heads", "5 KV heads"),
    ({"per_layer_config": {"3": {"num_key_value_heads": 7}}}, "num_key_value_heads", "7 KV heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads", "above 0"),
    ({"num_key_value_heads": -8}, "num_key_value_heads", "whole number"),
    ({"num_key_value_heads": 2.5}, "num_key_value_heads", "whole number"),
    ({"num_key_value_heads": True}, "num_key_value_heads", "whole number"),
    ({"num_key_value_heads": [8]}, "num_key_value_heads", "1 layers instead of 32"),
    ({"num_key_value_heads": [8] * 33}, "num_key_value_heads", "33 layers instead of 32"),
    ({"num_key_value_heads": [8] * 31 + [-8]}, "num_key_value_heads", "layer 31 cannot have -8"),
    ({"head_dim": 0}, "head_dim", "above 0"),
    ({"head_dim": -128}, "head_dim", "whole number"),
    ({"head_dim": [128] * 31}, "head_dim", "31 layers instead of 32"),
    ({"head_dim": [128] * 31 + [0]}, "head_dim", "layer 31 attends"),
    ({"num_attention_heads": 0}, "num_attention_heads", "above 0"),
]
"""Fields of a Llama, the field that the refusal names, and what it says."""


@pytest.mark.parametrize(("changed", "field", "why"), REFUSED)
def test_heads_that_no_model_can_have_are_refused(changed: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why) as caught:
        model_config_from_hf(LLAMA | changed, name="m")
    assert caught.value.numbers["field"] == field
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("config", "field", "why"),
    [
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8}, "num_kv_heads", "71 query"),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 3}}, "attn_config", "3 KV heads do not divide"),
        # Its sliding layers have twice the KV heads.
        (
            {"model_type": "mimo_v2_flash", "num_attention_heads": 6, "num_key_value_heads": 6},
            "num_key_value_heads", "12 KV heads do not divide 6",
        ),
    ],
)  # fmt: skip
def test_heads_under_other_names_are_refused_by_these(config: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why) as caught:
        model_config_from_hf(config, name="m")
    assert caught.value.numbers["field"] == field


@pytest.mark.parametrize(
    ("changed", "heads"),
    [
        ({}, {(8, 128)}),
        ({"num_key_value_heads": 8.0}, {(8, 128)}),
        ({"num_key_value_heads": None}, {(32, 128)}),
        ({"num_key_value_heads": [8] * 16 + [4] * 16}, {(8, 128), (4, 128)}),
        ({"hidden_size": 4100, "head_dim": 64}, {(8, 64)}),
        ({"head_dim": [64] * 16 + [128] * 16}, {(8, 64), (8, 128)}),
    ],
)
def test_heads_that_models_have_are_planned(changed: dict[str, Any], heads: set[tuple[int, int]]) -> None:
    layers = model_config_from_hf(LLAMA | changed, name="m").layers
    assert {(layer.num_kv_heads, layer.head_size) for layer in layers} == heads
