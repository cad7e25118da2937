"""What single architectures say by other means than fields. Whole models: tests/models/test_gguf_architectures.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import UnsupportedModelError
from tests.formats.test_gguf_config import HIDDEN, config_of


def test_a_stated_pattern_of_windows(tmp_path: Path) -> None:
    window = {"attention.sliding_window": 32}
    by_period = config_of(tmp_path, "gemma3", **window, **{"attention.sliding_window_pattern": 3})
    by_layer = config_of(tmp_path, "gemma3", **window, **{"attention.sliding_window_pattern": [True, True, False]})
    expected = ["sliding_attention", "sliding_attention", "full_attention"]
    assert by_period["layer_types"] == by_layer["layer_types"] == expected
    assert "layer_types" not in config_of(tmp_path, "gemma3", **window)


def test_the_query_scale_of_gemma(tmp_path: Path) -> None:
    assert config_of(tmp_path, "gemma3", **{"attention.key_length": 256})["query_pre_attn_scalar"] == 256
    large = {"attention.key_length": 128, "embedding_length": 5376, "attention.head_count": 32}
    assert config_of(tmp_path, "gemma2", **large)["query_pre_attn_scalar"] == 168


def test_the_kinds_of_falcon(tmp_path: Path) -> None:
    def kind(num_kv_heads: int, *tensors: str) -> tuple[bool, bool, int]:
        shapes = dict.fromkeys(tensors, (HIDDEN,))
        config = config_of(tmp_path, "falcon", shapes, **{"attention.head_count_kv": num_kv_heads})
        return config["new_decoder_architecture"], config["multi_query"], config["num_ln_in_parallel_attn"]

    assert kind(1) == (False, True, 1)
    assert kind(2, "blk.0.attn_norm_2.weight") == (True, False, 2)
    assert kind(2) == (True, False, 1)


def test_layers_without_kv_heads_are_convolutions(tmp_path: Path) -> None:
    config = config_of(tmp_path, "lfm2", **{"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3})
    assert config["layer_types"] == ["conv", "full_attention", "conv"]
    assert (config["num_key_value_heads"], config["conv_L_cache"]) == (2, 3)


def test_a_gate_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="expert_gating_func = 1"):
        config_of(tmp_path, "minimax-m2", expert_gating_func=1)


def test_mamba_has_no_heads_and_falcons_variant_is_told_apart(tmp_path: Path) -> None:
    fields = {"ssm.inner_size": 128, "ssm.state_size": 8, "ssm.conv_kernel": 4, "ssm.time_step_rank": 4}
    fields |= {"attention.head_count": 0, "attention.head_count_kv": 0}
    config = config_of(tmp_path, "mamba", **fields)
    assert (config["model_type"], config["expand"], "num_attention_heads" in config) == ("mamba", 2, False)
    assert config_of(tmp_path, "mamba", **fields, **{"ssm.dt_b_c_rms": True})["model_type"] == "falcon_mamba"
