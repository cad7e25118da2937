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
from octavo.formats.hf_config import GLOBAL_HEAD_DIM, GLOBAL_HEAD_TYPES
from octavo.formats.layer_types import layer_types
from octavo.planning.layer_rules import layer_kinds

WITHOUT_FORMULAS: dict[str, str] = {
    "cohere_compass_text": "rope_parameters",
    "dbrx": "attn_config and ffn_config",
    "emu3_text_model": "architectures",
    "git": "vision_config",
    "longcat_flash": "num_layers",
    "moshi": "ffn_dim",
    "phi4_multimodal": "vision_config and audio_config",
    "recurrent_gemma": "lru_width",
    "zamba": "n_mamba_heads",
}
"""Types whose caches are planned and that have no formulas, and the field whose part in the sizes is not known."""

OUTSIDE = "outside"
"""Where tensors are that belong to no layer."""


class WeightTensor(NamedTuple):
    """One tensor of the weights."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """What a field changes that turns tensors on and off, where it is true (`on`) or false or absent (not `on`)."""

    on: bool
    removed: dict[str, tuple[str, ...]] = {}
    """Kind of a layer, or `OUTSIDE` -> names."""
    added: dict[str, dict[str, tuple[str, ...]]] = {}


class WeightShapes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tensors of one model type. A shape is a list of expressions such as `num_attention_heads*head_dim`."""

    fields: dict[str, Any]
    """The fields that the expressions name, with their defaults; None where the config must give them, and an
    expression where the class makes them of others."""
    names: dict[str, str] = {}
    """Usual name of a field -> this type's name for it."""
    rule: str = "none"
    """Which layers are different: a key of `LAYER_RULES`."""
    has_windows_apart: bool = False
    """Whether windowed layers have tensors of other shapes than full ones."""
    outside: dict[str, tuple[str, ...]]
    """Tensors outside the layers."""
    layers: dict[str, dict[str, tuple[str, ...]]]
    """Kind of a layer -> its tensors, `{}` in their names standing for its number."""
    switches: dict[str, Switch] = {}
    """By field."""
    pins: dict[str, Any] = {}
    """Fields of which this one value alone can be counted; `=hidden_size` is that field's."""
    needed: tuple[str, ...] = ()
    """Fields that tell layers apart, and that the class fills in its own way where the config is silent."""
    conflicts: tuple[tuple[str, str], ...] = ()
    """Pairs of switches that cannot be counted together."""

    def by_part(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The tensors of every kind of layer, and those outside."""
        return {OUTSIDE: self.outside, **self.layers}


class Derived(NamedTuple):
    """A number that code computes from fields."""

    fields: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], int]


def _rank(values: Mapping[str, Any], name: str) -> int:
    given = values.get(name)
    return given if isinstance(given, int) else math.ceil(values["hidden_size"] / 16)


DERIVED: dict[str, Derived] = {
    "mamba_inner": Derived(("mamba_expand", "hidden_size"), lambda of: of["mamba_expand"] * of["hidden_size"]),
    "mamba_mixed": Derived(
        ("mamba_inner", "mamba_n_groups", "mamba_d_state"),
        lambda of: of["mamba_inner"] + 2 * of["mamba_n_groups"] * of["mamba_d_state"],
    ),
    "mamba_projected": Derived(
        ("mamba_inner", "mamba_mixed", "mamba_n_heads"),
        lambda of: of["mamba_inner"] + of["mamba_mixed"] + of["mamba_n_heads"],
    ),
    "ssm_mixed": Derived(
        ("mamba_d_ssm", "mamba_n_groups", "mamba_d_state"),
        lambda of: of["mamba_d_ssm"] + 2 * of["mamba_n_groups"] * of["mamba_d_state"],
    ),
    "ssm_projected": Derived(
        ("mamba_d_ssm", "ssm_mixed", "mamba_n_heads"),
        lambda of: of["mamba_d_ssm"] + of["ssm_mixed"] + of["mamba_n_heads"],
    ),
    "mamba_step_rank": Derived(("hidden_size", "mamba_dt_rank"), lambda of: _rank(of, "mamba_dt_rank")),
    "inner": Derived(("expand", "hidden_size"), lambda of: of["expand"] * of["hidden_size"]),
    "mixed": Derived(
        ("inner", "n_groups", "state_size"), lambda of: of["inner"] + 2 * of["n_groups"] * of["state_size"]
    ),
    "projected": Derived(("inner", "mixed", "num_heads"), lambda of: of["inner"] + of["mixed"] + of["num_heads"]),
    "step_rank": Derived(("hidden_size", "time_step_rank"), lambda of: _rank(of, "time_step_rank")),
    "half_intermediate_size": Derived(("intermediate_size",), lambda of: of["intermediate_size"] // 2),
}
"""By names that formulas use; each may use those before it."""


def derive(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what follows from them, as far as the fields for it are numbers."""
    made = dict(values)
    for name, derived in DERIVED.items():
        try:
            made[name] = derived.value(made)
        except (KeyError, TypeError):
            continue
    return made


@cache
def shapes_table() -> Mapping[str, WeightShapes]:
    """Model type -> its tensors."""
    data = resources.files("octavo.planning").joinpath("weight_shapes.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, WeightShapes])


def count_tensors(config: Mapping[str, Any], dtype: str) -> list[WeightTensor] | None:
    """The tensors of a model with that config, all in `dtype`; None where they cannot be told: see `why_uncounted`.

    Of a composite config those of the text part.
    """
    part, model_type = counted_part(config)
    shapes = shapes_table().get(model_type)
    if shapes is None or _obstacle(config, shapes) is not None:
        return None
    try:
        return count_with(shapes, part, model_type, dtype)
    except (KeyError, TypeError, ValueError, UnsupportedModelError):
        return None


def count_with(shapes: WeightShapes, part: Mapping[str, Any], model_type: str, dtype: str) -> list[WeightTensor]:
    """The tensors by these formulas. Raises what a config with impossible fields makes of them."""
    values = field_values(part, shapes)
    types = layer_types(ConfigFields(part, model_type, config_table()[model_type]))
    kinds = layer_kinds(values, types, shapes.rule, has_windows_apart=shapes.has_windows_apart)
    parts = {kind: dict(tensors) for kind, tensors in shapes.by_part().items()}
    for field, switch in shapes.switches.items():
        if bool(_own_value(part, shapes, field)) == switch.on:
            _apply(switch, parts)
    named = [(name, shape) for name, shape in parts[OUTSIDE].items()]
    named += [(name.format(index), shape) for index, kind in enumerate(kinds) for name, shape in parts[kind].items()]
    return [_tensor(name, shape, values, dtype) for name, shape in named]


def _apply(switch: Switch, parts: dict[str, dict[str, tuple[str, ...]]]) -> None:
    for kind, names in switch.removed.items():
        for name in names:
            parts[kind].pop(name, None)
    for kind, tensors in switch.added.items():
        parts[kind].update(tensors)


def _own_value(part: Mapping[str, Any], shapes: WeightShapes, field: str) -> Any:
    """The config's, by either name, or the type's default."""
    default = shapes.fields.get(field)
    for name in (shapes.names.get(field, field), field):
        if name in part and not (part[name] is None and isinstance(default, bool)):
            return part[name]
    return default


def why_uncounted(config: Mapping[str, Any]) -> str:
    """Why `count_tensors` has no answer, as a part of a sentence."""
    part, model_type = counted_part(config)
    shapes = shapes_table().get(model_type)
    obstacle = _obstacle(config, shapes)
    if obstacle is not None:
        return obstacle
    if shapes is None:
        field = WITHOUT_FORMULAS.get(model_type, "model_type")
        return f"how large they are by the {field} of a {model_type} model is not known"
    try:
        count_with(shapes, part, model_type, "float32")
    except KeyError as error:
        return f"those of {error.args[0]} layers of a {model_type} model cannot be counted"
    except UnsupportedModelError as error:
        return f"its {error.numbers['field']} does not tell the layers"
    except (TypeError, ValueError) as error:
        return f"its fields give no sizes: {error}"
    return "they are not in its config"


def _obstacle(config: Mapping[str, Any], shapes: WeightShapes | None) -> str | None:
    part, _ = counted_part(config)
    if config.get("quantization_config") or part.get("quantization_config"):
        return "its quantization_config says they are packed, and not how large that is"
    if shapes is None:
        return None
    if part.get("per_layer_config"):
        return "its per_layer_config makes its layers unlike each other"
    for field in shapes.needed:
        if part.get(field) is None:
            return f"it does not state {field}"
    for field, pinned in shapes.pins.items():
        if isinstance(pinned, str) and pinned.startswith("="):
            pinned = _own_value(part, shapes, pinned[1:])
        value = part.get(field, pinned)
        if value != pinned:
            return f"its {field} is {value!r:.40}, and they can be counted only where it is {pinned!r:.40}"
    for first, second in shapes.conflicts:
        if all(bool(_own_value(part, shapes, field)) == shapes.switches[field].on for field in (first, second)):
            return f"its {first} and {second} together change them in a way that is not known"
    return None


def is_composite(config: Mapping[str, Any]) -> bool:
    """Whether the config describes more than a text model, of which the text part is run."""
    facts = config_table().get(str(config.get("model_type")))
    return facts is not None and facts.text is not None


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


def counted_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """As `text_part`; whether the head is tied is said by the whole, where it says so."""
    part, model_type = text_part(config)
    tied = config.get("tie_word_embeddings")
    part = part if tied is None else {**part, "tie_word_embeddings": tied}
    return (_with_global_heads(part) if model_type in GLOBAL_HEAD_TYPES else part), model_type


def _with_global_heads(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """`part` with the heads of full layers in the fields of published configs: transformers saves them by layer."""
    entries = part.get("per_layer_config")
    if not entries:
        return {**part, "global_head_dim": part.get("global_head_dim") or GLOBAL_HEAD_DIM}
    own, *others = entries.values() if isinstance(entries, Mapping) else [None]
    if (
        not isinstance(own, Mapping)
        or not own.keys() <= {"head_dim", "num_key_value_heads"}
        or any(other != own for other in others)
    ):
        return part
    heads = own.get("num_key_value_heads")
    if heads is not None and not part.get("attention_k_eq_v"):
        return part
    stated = {name: value for name, value in part.items() if name != "per_layer_config"}
    return {**stated, "global_head_dim": own.get("head_dim"), "num_global_key_value_heads": heads}


def field_values(part: Mapping[str, Any], shapes: WeightShapes) -> dict[str, Any]:
    """The fields that the expressions name: the config's own, or the type's defaults."""
    values: dict[str, Any] = {}
    for field, default in shapes.fields.items():
        own = shapes.names.get(field, field)
        value = part.get(own, part.get(field))
        values[field] = default if value is None else value
    made = field_defaults({field: value for field, value in values.items() if not isinstance(value, str)})
    for field, value in values.items():
        if isinstance(value, str) and isinstance(shapes.fields[field], str):
            made[field] = evaluate(value, made)
    return derive(made)


def field_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what classes make of absent ones, and what follows from them."""
    made = dict(values)
    widths = made.get("intermediate_size")
    if isinstance(widths, list) and len(set(map(str, widths))) == 1:  # Gemma 3n lists one for each layer
        made["intermediate_size"] = widths[0]
    if made.get("num_key_value_heads") is None:
        made["num_key_value_heads"] = made.get("num_attention_heads")
    if made.get("num_global_key_value_heads") is None:
        made["num_global_key_value_heads"] = made["num_key_value_heads"]
    if made.get("head_dim") is None and made.get("num_attention_heads"):
        made["head_dim"] = made["hidden_size"] // made["num_attention_heads"]
    return derive(made)


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
