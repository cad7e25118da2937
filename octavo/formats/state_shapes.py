"""Shapes of the recurrent state that a linear layer keeps for one request, whatever its length.

A causal convolution over `kernel` tokens keeps the last `kernel - 1` inputs, `[kernel - 1, channels]`, in the dtype of
computation. The recurrence keeps one matrix per head, or per channel. Which of the known families a layer belongs to is
told by the fields that its config has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo.formats.config_fields import ConfigFields

COMPUTE_DTYPE = "auto"
"""Stands for the dtype of the cache."""


class State(NamedTuple):
    """Shapes and dtypes, convolution first."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


def linear_state(fields: ConfigFields) -> State:
    """The state of a layer of type `linear_attention`.

    Raises `UnsupportedModelError` naming `layer_types` when the fields belong to no known family.
    """
    for needed, family in FAMILIES:
        if all(fields.get(name) is not None for name in needed):
            return family(fields)
    raise fields.refuse("layer_types", "the shape of its linear layers' state is not known")


def conv_state(fields: ConfigFields) -> State:
    """The state of a layer of type `conv` (LFM2's short convolutions)."""
    kernel = fields.positive("conv_L_cache")
    return State(((kernel - 1, fields.positive("hidden_size")),), (COMPUTE_DTYPE,))


def _gated_delta(fields: ConfigFields) -> State:
    """Gated delta rule: queries, keys and values pass the convolution; one matrix of key x value per value head, kept
    in float32."""
    num_key_heads = fields.whole("linear_num_key_heads") or fields.positive("num_attention_heads")
    num_value_heads = fields.whole("linear_num_value_heads") or fields.positive("num_attention_heads")
    key_size, value_size = fields.positive("linear_key_head_dim"), fields.positive("linear_value_head_dim")
    channels = 2 * num_key_heads * key_size + num_value_heads * value_size
    kernel = fields.positive("linear_conv_kernel_dim")
    return State(((kernel - 1, channels), (num_value_heads, key_size, value_size)), (COMPUTE_DTYPE, "float32"))


def _mamba2(
    fields: ConfigFields, *, num_heads: int, head_size: int, num_groups: int, state_size: int, kernel: int
) -> State:
    """Mamba 2: inputs and both state projections pass the convolution; the recurrence is kept in float32."""
    channels = num_heads * head_size + 2 * num_groups * state_size
    return State(((kernel - 1, channels), (num_heads, head_size, state_size)), (COMPUTE_DTYPE, "float32"))


def _bamba(fields: ConfigFields) -> State:
    num_heads = fields.positive("mamba_n_heads")
    inner = fields.whole("mamba_d_ssm") or fields.positive("mamba_expand") * fields.positive("hidden_size")
    given = fields.get("mamba_d_head")
    return _mamba2(
        fields,
        num_heads=num_heads,
        head_size=inner // num_heads if given in (None, "auto") else fields.positive("mamba_d_head"),
        num_groups=fields.positive("mamba_n_groups"),
        state_size=fields.positive("mamba_d_state"),
        kernel=fields.positive("mamba_d_conv"),
    )


def _nemotron_h(fields: ConfigFields) -> State:
    return _mamba2(
        fields,
        num_heads=fields.positive("mamba_num_heads"),
        head_size=fields.positive("mamba_head_dim"),
        num_groups=fields.positive("n_groups"),
        state_size=fields.positive("ssm_state_size"),
        kernel=fields.positive("conv_kernel"),
    )


def _mamba2_alone(fields: ConfigFields) -> State:
    return _mamba2(
        fields,
        num_heads=fields.positive("num_heads"),
        head_size=fields.positive("head_dim"),
        num_groups=fields.positive("n_groups"),
        state_size=fields.positive("state_size"),
        kernel=fields.positive("conv_kernel"),
    )


def _zamba2(fields: ConfigFields) -> State:
    inner = fields.positive("mamba_expand") * fields.positive("hidden_size")
    num_heads = fields.positive("n_mamba_heads")
    return _mamba2(
        fields,
        num_heads=num_heads,
        head_size=inner // num_heads,
        num_groups=fields.positive("mamba_ngroups"),
        state_size=fields.positive("mamba_d_state"),
        kernel=fields.positive("mamba_d_conv"),
    )


def _mamba1(channels: int, state_size: int, kernel: int) -> State:
    """Mamba 1: each channel has a state of its own, kept in float32."""
    return State(((kernel - 1, channels), (channels, state_size)), (COMPUTE_DTYPE, "float32"))


def _jamba(fields: ConfigFields) -> State:
    channels = fields.positive("mamba_expand") * fields.positive("hidden_size")
    return _mamba1(channels, fields.positive("mamba_d_state"), fields.positive("mamba_d_conv"))


def _mamba_alone(fields: ConfigFields) -> State:
    channels = fields.positive("expand") * fields.positive("hidden_size")
    return _mamba1(channels, fields.positive("state_size"), fields.positive("conv_kernel"))


def _gated_lru(fields: ConfigFields) -> State:
    """RecurrentGemma: one number per channel, kept in float32."""
    channels = fields.whole("lru_width") or fields.positive("hidden_size")
    return State(((fields.positive("conv1d_width") - 1, channels), (channels,)), (COMPUTE_DTYPE, "float32"))


def _kimi_delta(fields: ConfigFields) -> State:
    """Kimi Linear: as the gated delta rule, all heads alike. Older configs keep the numbers in an object."""
    inner = fields.get("linear_attn_config")
    given = inner if isinstance(inner, dict) else {}
    numbers = []
    for name, inner_name in (
        ("linear_num_heads", "num_heads"),
        ("linear_head_dim", "head_dim"),
        ("linear_conv_kernel_dim", "short_conv_kernel_size"),
    ):
        number = given.get(inner_name)
        numbers.append(number if isinstance(number, int) and number > 0 else fields.positive(name))
    num_heads, head_size, kernel = numbers
    channels = 3 * num_heads * head_size
    return State(((kernel - 1, channels), (num_heads, head_size, head_size)), (COMPUTE_DTYPE, "float32"))


def _lightning(fields: ConfigFields) -> State:
    """MiniMax: one matrix of key x value per head, and no convolution."""
    num_heads = fields.positive("num_attention_heads")
    size = fields.whole("head_dim") or fields.positive("hidden_size") // num_heads
    return State(((num_heads, size, size),), (COMPUTE_DTYPE,))


FAMILIES: tuple[tuple[tuple[str, ...], Callable[[ConfigFields], State]], ...] = (
    (("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"), _gated_delta),
    (("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"), _kimi_delta),
    (("linear_attn_alpha_factor",), _lightning),
    (("n_mamba_heads", "mamba_ngroups", "mamba_d_state", "mamba_d_conv", "mamba_expand"), _zamba2),
    (("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"), _bamba),
    (("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"), _nemotron_h),
    (("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"), _mamba2_alone),
    (("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank"), _jamba),
    (("state_size", "conv_kernel", "expand"), _mamba_alone),
    (("conv1d_width",), _gated_lru),
)
"""The fields that tell a family -> the shapes of its state. The first that fits holds."""
