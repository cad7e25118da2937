"""Sizes that differ by kind of layer; whole models: tests/models/test_gguf_architectures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelFileError, OctavoError, UnsupportedModelError
from tests.formats.test_gguf_config import HIDDEN, VOCAB, config_of

SIZES: dict[str, Any] = {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, True, False],
    "rope.freq_base_swa": 777.0,
}
OWN_VALUES = {"rope_freqs.weight": (16,), "blk.2.attn_v.weight": (2 * 32, HIDDEN)}
KEYS_AS_VALUES = {"rope_freqs.weight": (16,)}


def gemma4(tmp_path: Path, tensors: dict[str, tuple[int, ...]], **fields: Any) -> dict[str, Any]:
    return config_of(tmp_path, "gemma4", tensors, **(SIZES | fields))


def test_full_layers_have_sizes_of_their_own(tmp_path: Path) -> None:
    config = gemma4(tmp_path, OWN_VALUES)
    assert (config["head_dim"], config["global_head_dim"], config["sliding_window"]) == (16, 32, 8)
    assert (config["num_key_value_heads"], config["attention_k_eq_v"], config["enable_moe_block"]) == (2, False, False)
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 777.0
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == 12345.0
    assert "rope_theta" not in config
    assert (config["num_kv_shared_layers"], config["hidden_size_per_layer_input"]) == (0, 0)
    assert config["vocab_size_per_layer_input"] == VOCAB


def test_layers_without_values_take_their_keys(tmp_path: Path) -> None:
    config = gemma4(tmp_path, KEYS_AS_VALUES, **{"attention.head_count_kv": [2, 2, 1]})
    assert config["attention_k_eq_v"]
    assert (config["num_key_value_heads"], config["num_global_key_value_heads"]) == (2, 1)


def test_wide_mlps_in_layers_that_share(tmp_path: Path) -> None:
    fields = {"attention.shared_kv_layers": 1, "feed_forward_length": [160, 160, 320]}
    config = gemma4(tmp_path, OWN_VALUES, **fields)
    assert (config["intermediate_size"], config["use_double_wide_mlp"]) == (160, True)
    assert config["num_kv_shared_layers"] == 1


def test_inputs_by_layer_have_a_vocabulary_of_their_own(tmp_path: Path) -> None:
    config = gemma4(tmp_path, OWN_VALUES | {"per_layer_token_embd.weight": (9, 12)}, embedding_length_per_layer_input=4)
    assert (config["vocab_size_per_layer_input"], config["hidden_size_per_layer_input"]) == (9, 4)


@pytest.mark.parametrize(
    ("tensors", "fields", "error", "message"),
    [
        (OWN_VALUES, {"attention.head_count_kv": [2, 2, 1]}, UnsupportedModelError, "have values of their own"),
        (OWN_VALUES, {"attention.head_count_kv": [2, 1, 2]}, UnsupportedModelError, "not one number a kind of layer"),
        (OWN_VALUES, {"feed_forward_length": [160, 320, 320]}, UnsupportedModelError, "feed_forward_length = "),
        (OWN_VALUES, {"attention.shared_kv_layers": 4}, UnsupportedModelError, "shared_kv_layers = 4 with 3 layers"),
        (OWN_VALUES, {"attention.value_length": 16}, UnsupportedModelError, "with values of 16"),
        (
            OWN_VALUES,
            {"attention.value_length_swa": 8},
            UnsupportedModelError,
            "value_length_swa = 8 beside heads of 16",
        ),
        (OWN_VALUES, {"rope.dimension_count": 8}, UnsupportedModelError, "dimension_count = 8 beside heads of 32"),
        (OWN_VALUES, {"rope.dimension_count_swa": 8}, UnsupportedModelError, "dimension_count_swa = 8"),
        (OWN_VALUES, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, UnsupportedModelError, "'linear'"),
        ({}, {}, ModelFileError, "lacks the tensor rope_freqs.weight"),
        (
            OWN_VALUES,
            {"attention.sliding_window_pattern": [True, False, True]},
            ModelFileError,
            "the last one being full",
        ),
        (OWN_VALUES, {"attention.sliding_window_pattern": [False]}, ModelFileError, "does not say of each layer"),
        (OWN_VALUES, {"attention.sliding_window_pattern": None}, ModelFileError, "does not say of each layer"),
        (OWN_VALUES, {"attention.key_length_swa": None}, ModelFileError, "has no gemma4.attention.key_length_swa"),
        (OWN_VALUES, {"attention.shared_kv_layers": "two"}, ModelFileError, "not a int"),
    ],
)
def test_what_no_config_can_say_is_refused(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], fields: dict[str, Any], error: type[OctavoError], message: str
) -> None:
    with pytest.raises(error, match=message):
        gemma4(tmp_path, tensors, **fields)
