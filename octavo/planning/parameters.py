"""The weights of a model without its files, counted from the config.

`weight_shapes.json` beside this file has, for each model type that can be counted, the names of its tensors with their
shapes as sums of products of config fields. `tools/make_weight_shapes.py` finds them by building transformers' models
with other numbers in every field; what a formula does not explain in all of them is not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from octavo.config import DTYPE_BYTES
from octavo.errors import UnsupportedModelError
from octavo.formats.config_fields import ConfigFields, config_table
from octavo.formats.layer_types import CHUNKED, FULL, SLIDING, layer_types


class WeightTensor(NamedTuple):
    """One tensor of the weights."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int


class WeightShapes(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of one model type. A shape is a list of expressions such as `num_attention_heads*head_dim`."""

    fields: dict[str, Any]
    """The fields that the expressions name, with their defaults; None where the config must give them."""
    names: dict[str, str] = {}
    """Usual name of a field -> this type's name for it."""
    rule: str = "none"
    """Which layers have experts: a key of `EXPERT_RULES`."""
    outside: dict[str, tuple[str, ...]]
    """Tensors outside the layers."""
    layers: dict[str, dict[str, tuple[str, ...]]]
    """Kind of a layer -> its tensors, `{}` in their names standing for its number."""
    tied: bool
    """Whether the head is the embedding where the config is silent."""


def layer_kinds(values: Mapping[str, Any], types: list[str], rule: str) -> list[str]:
    """The key in `WeightShapes.layers` of each layer: its type (windows and chunks as full), and if it has experts."""
    has_experts = EXPERT_RULES[rule]
    plain = [FULL if kind in (SLIDING, CHUNKED) else kind for kind in types]
    return [f"{kind}{'+experts' if has_experts(values, index) else ''}" for index, kind in enumerate(plain)]


def _by_first_dense(values: Mapping[str, Any], index: int) -> bool:
    return index >= int(values.get("first_k_dense_replace") or 0)


def _by_sparse_step(values: Mapping[str, Any], index: int) -> bool:
    step = int(values.get("decoder_sparse_step") or 1)
    return index not in (values.get("mlp_only_layers") or ()) and (index + 1) % step == 0


def _by_types(values: Mapping[str, Any], index: int) -> bool:
    listed = values.get("mlp_layer_types") or ()
    return index < len(listed) and listed[index] == "sparse"


EXPERT_RULES: dict[str, Callable[[Mapping[str, Any], int], bool]] = {
    "none": lambda values, index: False,
    "first_dense": _by_first_dense,
    "sparse_step": _by_sparse_step,
    "types": _by_types,
}
"""By what a config tells which layers have experts."""

RULE_FIELDS = ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers", "mlp_layer_types")


@cache
def shapes_table() -> Mapping[str, WeightShapes]:
    """Model type -> its tensors."""
    data = resources.files("octavo.planning").joinpath("weight_shapes.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, WeightShapes])


def count_tensors(config: Mapping[str, Any], dtype: str) -> list[WeightTensor] | None:
    """The tensors of a model with that config, all in `dtype`; None where they cannot be told: see `why_uncounted`.

    Of a composite config those of the text part.
    """
    part, model_type = text_part(config)
    shapes = shapes_table().get(model_type)
    if shapes is None or _obstacle(config) is not None:
        return None
    values = field_values(part, shapes)
    try:
        types = layer_types(ConfigFields(part, model_type, config_table()[model_type]))
        kinds = layer_kinds(values, types, shapes.rule)
        named = [(name, shape) for name, shape in shapes.outside.items()]
        named += [
            (name.format(index), shape)
            for index, kind in enumerate(kinds)
            for name, shape in shapes.layers[kind].items()
        ]
        is_tied = values.get("tie_word_embeddings")
        if shapes.tied if is_tied is None else is_tied:
            named = [(name, shape) for name, shape in named if not name.startswith("lm_head.")]
        return [_tensor(name, shape, values, dtype) for name, shape in named]
    except (KeyError, TypeError, ValueError, UnsupportedModelError):
        return None


def why_uncounted(config: Mapping[str, Any]) -> str:
    """Why `count_tensors` has no answer, as a part of a sentence."""
    obstacle = _obstacle(config)
    if obstacle is not None:
        return obstacle
    return f"those of a {text_part(config)[1]} model cannot be counted from this config"


def _obstacle(config: Mapping[str, Any]) -> str | None:
    if config.get("quantization_config") or text_part(config)[0].get("quantization_config"):
        return "its quantization_config says they are packed, and not how large that is"
    return None


def text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part of a config that describes the text model, and its model type."""
    model_type = str(config.get("model_type"))
    facts = config_table().get(model_type)
    if facts is None or facts.text is None:
        return config, model_type
    key, text_type = facts.text
    part = config.get(key)
    if not isinstance(part, Mapping):
        return config, text_type
    return part, str(part.get("model_type", text_type))


def field_values(part: Mapping[str, Any], shapes: WeightShapes) -> dict[str, Any]:
    """The fields that the expressions name: the config's own, or the type's defaults."""
    values: dict[str, Any] = {}
    for field, default in shapes.fields.items():
        own = shapes.names.get(field, field)
        value = part.get(own, part.get(field))
        values[field] = default if value is None else value
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = values.get("num_attention_heads")
    if values.get("head_dim") is None and values.get("num_attention_heads"):
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    return values


def evaluate(expression: str, values: Mapping[str, Any]) -> int:
    """A sum of products of fields and numbers. Raises `ValueError` where a field is no number above 0."""
    total = 0
    for product in expression.split("+"):
        factors = [int(factor) if factor.isdigit() else values[factor] for factor in product.split("*")]
        if not all(isinstance(factor, int) and factor > 0 for factor in factors):
            raise ValueError(expression)
        total += math.prod(factors)
    return total


def _tensor(name: str, shape: tuple[str, ...], values: Mapping[str, Any], dtype: str) -> WeightTensor:
    sizes = tuple(evaluate(expression, values) for expression in shape)
    return WeightTensor(name, sizes, math.prod(sizes) * DTYPE_BYTES[dtype])
