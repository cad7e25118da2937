"""Write octavo/planning/weight_shapes.json: the tensors of transformers' causal models as formulas over config fields.

Each type is built on the meta device with three sets of numbers, in which no two fields are equal. A size that one
formula explains in all three is taken; a type with a size that none explains is left out, as is one whose layers differ
by something that the config does not tell. A fourth set checks the result. `--check` writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.formats.config_fields import ConfigFields, config_table
from octavo.formats.layer_types import layer_types
from octavo.planning.parameters import EXPERT_RULES, RULE_FIELDS, WeightShapes, count_tensors, layer_kinds
from tools.imports import ROOT

PATH = ROOT / "octavo" / "planning" / "weight_shapes.json"

NUMBERS: dict[str, tuple[int, ...]] = {
    "hidden_size": (48, 120, 224, 352), "intermediate_size": (136, 184, 248, 296), "vocab_size": (211, 307, 401, 503),
    "num_attention_heads": (4, 6, 8, 16), "num_key_value_heads": (2, 3, 2, 4), "head_dim": (10, 14, 26, 34),
    "num_hidden_layers": (6, 8, 12, 10), "max_position_embeddings": (512, 640, 896, 1152),
    "moe_intermediate_size": (38, 46, 58, 74), "num_experts": (16, 24, 40, 56), "n_routed_experts": (16, 24, 40, 56),
    "num_local_experts": (16, 24, 40, 56), "shared_expert_intermediate_size": (44, 52, 76, 92),
    "n_shared_experts": (3, 5, 7, 9), "first_k_dense_replace": (1, 2, 3, 4), "q_lora_rank": (22, 62, 82, 106),
    "kv_lora_rank": (17, 31, 59, 83), "qk_nope_head_dim": (14, 22, 46, 34), "qk_rope_head_dim": (8, 20, 12, 28),
    "v_head_dim": (25, 37, 41, 71), "linear_key_head_dim": (11, 13, 17, 19), "linear_value_head_dim": (23, 29, 31, 37),
    "linear_num_key_heads": (2, 4, 6, 8), "linear_num_value_heads": (4, 12, 18, 32),
    "linear_conv_kernel_dim": (3, 5, 7, 9), "global_head_dim": (66, 86, 94, 118),
}  # fmt: skip
"""Field -> its value in each of the sets."""


def main() -> int:
    """Write the table, or compare it; the exit status says whether it was up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    made = render(make_table())
    if parser.parse_args().check:
        return int(not PATH.exists() or PATH.read_text("utf-8") != made)
    PATH.write_text(made, "utf-8")
    return 0


def render(table: Mapping[str, WeightShapes]) -> str:
    """One line for each type."""
    lines = [f'"{name}": {msgspec.json.encode(table[name], order="sorted").decode()}' for name in sorted(table)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def make_table() -> dict[str, WeightShapes]:
    """Every type that can be counted."""
    logging.disable(logging.WARNING)
    found = {}
    for model_type, facts in config_table().items():
        if facts.architecture is not None and facts.text is None:
            try:
                shapes = find_shapes(model_type, facts.architecture)
            except Exception as error:  # classes refuse numbers in their own ways
                sys.stderr.write(f"{model_type}: {type(error).__name__}: {str(error)[:120]}\n")
                continue
            found[model_type] = shapes
    return found


def find_shapes(model_type: str, architecture: str) -> WeightShapes:
    """The formulas of one type. Raises whatever keeps them from being found."""
    names = CONFIG_MAPPING[model_type].attribute_map
    models = [build(model_type, architecture, index) for index in range(4)]
    given = [config.to_dict() for config, _ in models]
    explain = Explainer([config for config, _ in models[:3]])
    shapes = None
    for rule in EXPERT_RULES:
        shapes = _with_rule(rule, model_type, models[:3], given, explain, names)
        if shapes is not None:
            break
    if shapes is None:
        raise ValueError("layers differ by something that the config does not tell")
    check(shapes, given[3], models[3][1], model_type)
    return shapes


def build(model_type: str, architecture: str, index: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """(the config with the numbers of one set, the shapes of the model's tensors by name)"""
    config_class = CONFIG_MAPPING[model_type]
    names = config_class.attribute_map
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_table()[model_type].reads)
    known -= {"sliding_window"}
    fields: dict[str, Any] = {}
    for name, values in NUMBERS.items():
        own = next((own for own in (names.get(name, name), name) if own in known), None)
        if own is not None:
            fields[own] = values[index]
    if "kv_lora_rank" in known:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if "pad_token_id" in known:
        fields["pad_token_id"] = 0
    config = config_class(**fields, tie_word_embeddings=False)
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    return config, {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class Explainer:
    """Sizes as formulas over the fields of three configs."""

    def __init__(self, configs: list[Any]) -> None:
        atoms = dict(_atoms(configs))
        self._known: dict[tuple[int, ...], str] = {}
        products: dict[str, tuple[int, ...]] = {}
        for factor in (1, 2, 3, 4):
            for name, values in atoms.items():
                self._add(products, (factor,), (name,), values)
        for factor in (1, 2, 3):
            for first, second in itertools.combinations(atoms, 2):
                values = tuple(a * b for a, b in zip(atoms[first], atoms[second], strict=True))
                self._add(products, (factor,), (first, second), values)
        singles = list(products.items())
        for (first, left), (second, right) in itertools.combinations(singles, 2):
            self._known.setdefault(tuple(a + b for a, b in zip(left, right, strict=True)), f"{first}+{second}")

    def _add(
        self, products: dict[str, tuple[int, ...]], factors: tuple[int], names: tuple[str, ...], values: tuple[int, ...]
    ) -> None:
        (factor,) = factors
        text = "*".join((*([str(factor)] if factor > 1 else []), *names))
        scaled = tuple(factor * value for value in values)
        products[text] = scaled
        self._known.setdefault(scaled, text)

    def expression(self, sizes: tuple[int, ...]) -> str:
        """The formula of a size, given in each of the three models. Raises `ValueError` where there is none."""
        if sizes in self._known:
            return self._known[sizes]
        if len(set(sizes)) == 1 and sizes[0] <= 4:
            return str(sizes[0])
        raise ValueError(f"no formula gives {sizes}")


def _atoms(configs: list[Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in NUMBERS:
        if name in ("head_dim", "num_key_value_heads") and getattr(configs[0], "kv_lora_rank", None):
            continue  # such classes derive them from other fields
        values = tuple(getattr(config, name, None) for config in configs)
        if name == "head_dim" and None in values:
            values = tuple(config.hidden_size // config.num_attention_heads for config in configs)
        if all(isinstance(value, int) and value > 0 for value in values) and len(set(values)) > 1:
            yield name, values  # type: ignore[misc]


def _with_rule(
    rule: str, model_type: str, models: Any, given: list[dict[str, Any]], explain: Explainer, names: Mapping[str, str]
) -> WeightShapes | None:
    """The table's entry if experts lie by `rule`; None where layers of one kind have different tensors."""
    by_kind: dict[str, list[dict[str, tuple[int, ...]]]] = {}
    outside: list[dict[str, tuple[int, ...]]] = []
    for (config, tensors), fields in zip(models, given, strict=False):
        values = {name: getattr(config, name, None) for name in RULE_FIELDS}
        types = layer_types(ConfigFields(fields, model_type, config_table()[model_type]))
        kinds = layer_kinds(values, types, rule)
        parts: list[dict[str, tuple[int, ...]]] = [{} for _ in kinds]
        rest = {}
        for name, shape in tensors.items():
            match = re.fullmatch(r"(.*?\.(?:layers|h|blocks|block)\.)(\d+)(\..*)", name)
            if match:
                parts[int(match[2])][f"{match[1]}{{}}{match[3]}"] = shape
            else:
                rest[name] = shape
        outside.append(rest)
        for kind in set(kinds):
            of_kind = [part for part, own in zip(parts, kinds, strict=True) if own == kind]
            if any(part != of_kind[0] for part in of_kind):
                return None
            by_kind.setdefault(kind, []).append(of_kind[0])
    if any(len(found) != 3 for found in by_kind.values()):
        raise ValueError("not every kind of layer is in every model")
    used = {}
    shapes = WeightShapes(
        fields=used,
        names={name: own for name, own in names.items() if name in NUMBERS},
        rule=rule,
        outside=_formulas(outside, explain),
        layers={kind: _formulas(found, explain) for kind, found in by_kind.items()},
        tied=bool(getattr(CONFIG_MAPPING[model_type](), "tie_word_embeddings", False)),
    )
    texts = [text for part in (shapes.outside, *shapes.layers.values()) for shape in part.values() for text in shape]
    wanted = {name for text in texts for name in re.findall(r"[a-z_]\w*", text)}
    wanted |= {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"}
    wanted |= set(RULE_FIELDS) if rule != "none" else set()
    defaults = CONFIG_MAPPING[model_type]
    for name in sorted(wanted):
        used[name] = _default(defaults, name, names.get(name, name))
    return shapes


def _default(config_class: Any, *wanted: str) -> Any:
    for field in dataclasses.fields(config_class):
        if field.name in wanted and field.default is not dataclasses.MISSING:
            return field.default if isinstance(field.default, int | bool | list | None) else None
    return None


def _formulas(found: list[dict[str, tuple[int, ...]]], explain: Explainer) -> dict[str, tuple[str, ...]]:
    if any(part.keys() != found[0].keys() for part in found):
        raise ValueError("the models have other tensors")
    return {
        name: tuple(explain.expression(tuple(sizes)) for sizes in zip(*(part[name] for part in found), strict=True))
        for name in found[0]
    }


def check(shapes: WeightShapes, config: dict[str, Any], tensors: dict[str, tuple[int, ...]], model_type: str) -> None:
    """Raise `ValueError` unless the formulas give another model's tensors."""
    import octavo.planning.parameters as parameters

    parameters.shapes_table.cache_clear()
    original = parameters.shapes_table
    parameters.shapes_table = lambda: {model_type: shapes}  # type: ignore[assignment]
    try:
        counted = count_tensors({**config, "model_type": model_type}, "float32")
    finally:
        parameters.shapes_table = original
    total = sum(math.prod(shape) for shape in tensors.values())
    if counted is None or sum(tensor.num_bytes for tensor in counted) != 4 * total:
        raise ValueError("the formulas do not give the fourth model")


if __name__ == "__main__":
    raise SystemExit(main())
