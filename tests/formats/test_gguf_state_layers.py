"""Layers that keep a state; whole models: tests/models/test_gguf_architectures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelFileError
from tests.formats.test_gguf_config import config_of

SIZES: dict[str, Any] = {
    "block_count": 5,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "rope.dimension_count": 4,
    "rope.dimension_sections": [1, 1, 0, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": 8,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 72,
    "full_attention_interval": 2,
}


def delta(tmp_path: Path, **fields: Any) -> dict[str, Any]:
    return config_of(tmp_path, "qwen35", **(SIZES | fields))


def test_the_sizes_of_a_state(tmp_path: Path) -> None:
    config = delta(tmp_path)
    assert (config["linear_num_key_heads"], config["linear_num_value_heads"]) == (2, 6)
    assert (config["linear_key_head_dim"], config["linear_value_head_dim"], config["linear_conv_kernel_dim"]) == (
        8,
        12,
        4,
    )
    assert config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 12345.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1],
        "mrope_interleaved": True,
    }


def test_every_nth_layer_attends_or_those_that_the_file_says(tmp_path: Path) -> None:
    state, full = "linear_attention", "full_attention"
    assert delta(tmp_path)["layer_types"] == [state, full, state, full, state]
    listed = delta(tmp_path, **{"attention.recurrent_layers": [False, True, True, True, True]})
    assert listed["layer_types"] == [full, state, state, state, state]


def test_layers_for_further_tokens_are_left_out(tmp_path: Path) -> None:
    config = delta(tmp_path, nextn_predict_layers=1)
    assert (config["num_hidden_layers"], len(config["layer_types"])) == (4, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nextn_predict_layers": 5}, "has 5 layers, 5 of them for further tokens"),
        ({"ssm.time_step_rank": 0}, "with 0 value heads"),
        ({"ssm.time_step_rank": None}, "with None value heads"),
        ({"ssm.inner_size": None}, "has no qwen35.ssm.inner_size"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        delta(tmp_path, **fields)


def test_convolutions_and_mamba(tmp_path: Path) -> None:
    lfm2 = config_of(tmp_path, "lfm2", **{"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3})
    assert lfm2["layer_types"] == ["conv", "full_attention", "conv"]
    assert (lfm2["num_key_value_heads"], lfm2["conv_bias"]) == (2, False)
    mamba = config_of(tmp_path, "mamba", **{"ssm.inner_size": 64, "attention.layer_norm_rms_epsilon": 0.5})
    assert (mamba["model_type"], mamba["use_conv_bias"]) == ("mamba", False)
    assert (
        config_of(tmp_path, "mamba", **{"ssm.inner_size": 64, "ssm.dt_b_c_rms": True})["model_type"] == "falcon_mamba"
    )
