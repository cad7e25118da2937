"""What one of several ranks computes of a model: the model of the same class with fewer heads and narrower layers.

Query heads, KV heads and widths of feed-forward parts are divided; everything else a rank has whole. Where there are
fewer KV heads than ranks, neighbours have the same one; a width that the ranks do not divide is filled up with zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from octavo.config import LayerConfig, ModelConfig
from octavo.errors import UnsupportedModelError
from octavo.kv.base import ceil_div

Kind = Literal["heads", "kv_heads", "width"]

_HEADS = ("num_attention_heads",)
_KV_HEADS = ("key_value_heads", "num_kv_heads")
_WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")


def divided_fields(config: Any) -> dict[str, Kind]:
    """Fields of a transformers config that ranks divide, by the names under which the config keeps them."""
    aliases: Mapping[str, str] = getattr(config, "attribute_map", {})
    found: dict[str, Kind] = {}
    for key, value in vars(config).items():
        names = [key, *(alias for alias, target in aliases.items() if target == key)]
        kind = next((kind for name in names if (kind := _kind_of(name)) is not None), None)
        numbers = value if isinstance(value, list | tuple) else [value]
        if kind is not None and numbers and all(type(number) is int and number > 0 for number in numbers):
            found[key] = kind
    return found


def _kind_of(name: str) -> Kind | None:
    if name.endswith(_KV_HEADS):
        return "kv_heads"
    if name.endswith(_HEADS):
        return "heads"
    return "width" if name.endswith(_WIDTHS) or "intermediate_size" in name else None


def field_of(config: Any, name: str) -> Any:
    """What a transformers config has for all layers in a field, which some of its classes give for each layer alone
    when they are asked; None where it has none."""
    own = vars(config)
    return own[name] if name in own else getattr(config, name, None)


def with_fields(config: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a transformers config with other values, and its head size spelled out: it stays what it was."""
    made = copy.deepcopy(config)
    if field_of(config, "head_dim") is None and (heads := field_of(config, "num_attention_heads")):
        made.head_dim = config.hidden_size // heads
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def scaled(value: Any, factor: int) -> Any:
    """A field's number, or each of its numbers, times `factor`."""
    return [number * factor for number in value] if isinstance(value, list | tuple) else value * factor


def part_of(kind: Kind, number: int, num_ranks: int) -> int:
    """How many of `number` heads or columns each rank has. Numbers of heads have been checked."""
    return ceil_div(number, num_ranks) if kind == "width" else max(1, number // num_ranks)


def rank_fields(config: Any, fields: Mapping[str, Kind], num_ranks: int) -> dict[str, Any]:
    """The values that the fields have on each rank."""

    def part(kind: Kind, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [part_of(kind, number, num_ranks) for number in value]
        return part_of(kind, value, num_ranks)

    return {name: part(kind, field_of(config, name)) for name, kind in fields.items()}


def rank_model_config(model_config: ModelConfig, num_ranks: int) -> ModelConfig:
    """The description of one rank's part of the model.

    Raises `UnsupportedModelError` when `num_ranks` does not divide the query heads, or neither divides the KV heads of
    a layer nor is divided by them.
    """
    heads = model_config.num_heads
    if heads % num_ranks:
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise UnsupportedModelError(
            f"--tensor-parallel-size is {num_ranks}, which does not divide the {heads} query heads of "
            f"{model_config.name}.",
            remedy=f"Set it to one of {fitting}.",
            num_heads=heads,
            num_ranks=num_ranks,
        )

    def divided(layer: LayerConfig) -> LayerConfig:
        if layer.kind in ("mla", "mamba", "none"):
            return layer
        count = layer.num_kv_heads
        if count % num_ranks and num_ranks % count:
            raise UnsupportedModelError(
                f"--tensor-parallel-size is {num_ranks}, which neither divides {count} KV heads of "
                f"{model_config.name} nor is a multiple of them.",
                remedy=f"Set it to a divisor or a multiple of {count} that divides {heads}.",
                num_kv_heads=count,
                num_ranks=num_ranks,
            )
        return msgspec.structs.replace(layer, num_kv_heads=part_of("kv_heads", count, num_ranks))

    return msgspec.structs.replace(
        model_config, num_heads=heads // num_ranks, layers=tuple(divided(layer) for layer in model_config.layers)
    )
