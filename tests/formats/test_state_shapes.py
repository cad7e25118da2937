from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.formats.config_fields import ConfigFields, config_table
from octavo.formats.state_shapes import State, conv_state, linear_state


def fields(model_type: str, **values: Any) -> ConfigFields:
    return ConfigFields(values, model_type, config_table()[model_type])


# The shapes of the first three are those that the reference engine reports for these models (oracle/cases.json).
@pytest.mark.parametrize(
    ("model_type", "values", "expected"),
    [
        (
            "qwen3_next",
            {
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
            },
            State(((3, 8192), (32, 128, 128)), ("auto", "float32")),
        ),
        (
            "jamba",
            {"hidden_size": 4096, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
            State(((3, 8192), (8192, 16)), ("auto", "float32")),
        ),
        (
            "granitemoehybrid",
            {
                "hidden_size": 4096,
                "mamba_expand": 2,
                "mamba_n_heads": 128,
                "mamba_d_head": 64,
                "mamba_n_groups": 1,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
            },
            State(((3, 8448), (128, 64, 128)), ("auto", "float32")),
        ),
        (
            "mamba",
            {"hidden_size": 768, "expand": 2, "state_size": 16, "conv_kernel": 4},
            State(((3, 1536), (1536, 16)), ("auto", "float32")),
        ),
        (
            "mamba2",
            {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4},
            State(((3, 10240), (128, 64, 128)), ("auto", "float32")),
        ),
        (
            "nemotron_h",
            {"mamba_num_heads": 8, "mamba_head_dim": 4, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4},
            State(((3, 96), (8, 4, 16)), ("auto", "float32")),
        ),
        (
            "zamba2",
            {"hidden_size": 2560, "mamba_expand": 2, "n_mamba_heads": 80, "mamba_d_state": 64, "mamba_ngroups": 1},
            State(((3, 5248), (80, 64, 64)), ("auto", "float32")),
        ),
        (
            "kimi_linear",
            {"linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}},
            State(((3, 12288), (32, 128, 128)), ("auto", "float32")),
        ),
        ("minimax", {"num_attention_heads": 64, "head_dim": 128}, State(((64, 128, 128),), ("auto",))),
        ("recurrent_gemma", {"hidden_size": 2560}, State(((3, 2560), (2560,)), ("auto", "float32"))),
    ],
)
def test_states(model_type: str, values: dict[str, Any], expected: State) -> None:
    assert linear_state(fields(model_type, **values)) == expected


def test_a_short_convolution_keeps_its_last_inputs_alone() -> None:
    assert conv_state(fields("lfm2", conv_L_cache=3, hidden_size=64)) == State(((2, 64),), ("auto",))


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="layer_types") as caught:
        linear_state(fields("llama"))
    assert "state is not known" in str(caught.value)
