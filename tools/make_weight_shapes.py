"""Write octavo/planning/weight_shapes.json: the tensors of transformers' causal models as formulas over config fields.

Each type is built on the meta device with three sets of numbers, in which no two fields are equal. A size that one
formula explains in all three is taken; a type with a size that none explains is left out, as is one whose layers differ
by something that the config does not tell. Fields that switch tensors on and off are found by changing each field
alone. A fourth set checks the result, and so does every model with one field changed: where the formulas do not give
it, that field is pinned to the value that was tried. Types whose caches are not planned are left out: nobody would ask
what they weigh. `--check` writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.formats.config_fields import ConfigFields, config_table
from octavo.formats.hf_config import model_config_from_hf
from octavo.formats.layer_types import layer_types
from octavo.planning.layer_rules import LAYER_RULES, layer_kinds
from octavo.planning.parameters import DERIVED, OUTSIDE, Switch, WeightShapes, count_with, field_defaults
from tools.imports import ROOT
from tools.weight_formulas import Explainer, Sizes
from tools.weight_models import NUMBERS, Built, Probe, Recipe

PATH = ROOT / "octavo" / "planning" / "weight_shapes.json"

Parts = dict[str, dict[str, tuple[int, ...]]]
"""Kind of layer, or `OUTSIDE` -> tensors, `{}` in their names for the layer's number."""
Formulas = dict[str, dict[str, tuple[str, ...]]]

MAY_BE_0 = ("hidden_size_per_layer_input",)
"""Number fields that take tensors away where they are 0."""


def main() -> int:
    """Write the table, or compare it; the exit status says whether it was up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    made = render(make_table())
    if is_check:
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
                found[model_type] = find_shapes(model_type, facts.architecture)
            except Exception as error:  # classes refuse numbers in their own ways
                sys.stderr.write(f"{model_type}: {type(error).__name__}: {str(error)[:120]}\n")
            else:
                sys.stderr.write(f"{model_type}: found\n")
    return found


def find_shapes(model_type: str, architecture: str) -> WeightShapes:
    """The formulas of one type. Raises whatever keeps them from being found."""
    first: Exception | None = None
    for without in ((), ("head_dim",)):  # some classes read a head size in one place and derive it in another
        recipe = Recipe(model_type, architecture, without=frozenset(without))
        try:
            return _find(recipe)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _find(recipe: Recipe) -> WeightShapes:
    probes = list(recipe.probes())
    recipe = recipe._replace(extra=_more_numbers(recipe, probes))  # in the first model they are the defaults
    models = [recipe.build(index) for index in range(4)]
    base = models[0]
    model_config_from_hf(base.fields, name=recipe.model_type)  # refuses what cannot be planned
    shapes = _shapes(recipe, models)
    flips = {
        probe.field: probe.value
        for probe in probes
        if (isinstance(probe.value, bool | None) or base.fields.get(probe.field) is None)
        and probe.built.tensors != base.tensors
    }
    flips |= {field: 0 for field in MAY_BE_0 if base.fields.get(field)}
    switches: dict[str, Switch] = {}
    for field, value in flips.items():
        try:
            numbers = (value, 20, 28, 36) if value and not isinstance(value, bool) else (value,) * 4
            other = recipe._replace(extra={**recipe.extra, field: numbers})
            flipped = _shapes(other, [other.build(index) for index in range(3)], shapes)
        except Exception:
            continue
        switches[field] = _switch(bool(value), shapes, flipped)
    fields = _fields(recipe, [shapes, *(_added(switch) for switch in switches.values())], shapes.rule, switches)
    fields |= _derived_defaults(recipe, fields)
    shapes = msgspec.structs.replace(
        shapes, fields=fields, switches=switches, needed=needed_fields(recipe.model_type, shapes.rule, fields)
    )
    if not _agree(shapes, models[3]):
        raise ValueError("the formulas do not give the fourth model")
    pins = {probe.field: _pinned(recipe, base, probe.field) for probe in probes if not _agree(shapes, probe.built)}
    shapes = msgspec.structs.replace(
        shapes, pins=pins, switches={field: switch for field, switch in switches.items() if field not in pins}
    )
    return msgspec.structs.replace(shapes, conflicts=_conflicts(recipe, shapes, flips))


def _pinned(recipe: Recipe, base: Built, field: str) -> Any:
    """The field's value, or the name of the field that has it too."""
    value = base.fields.get(field)
    if not isinstance(value, int) or value < 10:
        return value  # small numbers are alike by chance
    same = (name for name, numbers in NUMBERS.items() if numbers[0] == value and base.fields.get(name) == value)
    return next((f"={name}" for name in same if name != field), value)


def _agree(shapes: WeightShapes, built: Built) -> bool:
    """Whether the formulas give the model's parameters."""
    try:
        counted = count_with(shapes, built.fields, str(built.fields["model_type"]), "float32")
    except Exception:
        return False
    return {tensor.name: tensor.shape for tensor in counted} == built.tensors


def _conflicts(recipe: Recipe, shapes: WeightShapes, flips: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Pairs of switches that do more together than each alone."""
    found = []
    for pair in itertools.combinations(shapes.switches, 2):
        try:
            built = recipe.build(0, **{field: flips[field] for field in pair})
        except Exception:
            continue
        if not _agree(shapes, built):
            found.append(pair)
    return tuple(found)


def _more_numbers(recipe: Recipe, probes: Sequence[Probe]) -> dict[str, tuple[int, ...]]:
    """Further fields that sizes depend on, with numbers that all models can be built with."""
    base, extra = recipe.build(0), dict[str, tuple[int, ...]]()
    for place, probe in enumerate(probes):
        default, own = base.fields.get(probe.field), probe.built.tensors
        is_size = isinstance(default, int) and not isinstance(default, bool)
        if not is_size or own.keys() != base.tensors.keys() or own == base.tensors:
            continue
        step = 1 + place % 3
        for numbers in (
            (default, default + step, default + 2 * step + 1, default + 4 * step + 1),
            (default, 2 * default, 3 * default, 5 * default),
            (default, 2 * default, 4 * default, 8 * default),
        ):
            wanted = recipe._replace(extra=extra | {probe.field: numbers})
            try:
                for index in range(4):
                    wanted.build(index)
            except Exception:
                continue
            extra[probe.field] = numbers
            break
    return extra


def _atoms(recipe: Recipe, models: Sequence[Built]) -> dict[str, Sizes]:
    """Fields by their usual names, and what follows from them, with their values in each model."""
    names = CONFIG_MAPPING[recipe.model_type].attribute_map
    usual = {own: name for name, own in names.items()}
    wanted = dict.fromkeys([*NUMBERS, *(usual.get(own, own) for own in recipe.fields()), *DERIVED])
    rows = []
    for built in models:
        values = {name: built.fields.get(names.get(name, name), built.fields.get(name)) for name in wanted}
        rows.append(field_defaults(values))
    atoms = {}
    for name in wanted:
        if name in ("head_dim", "num_key_value_heads") and rows[0].get("kv_lora_rank"):
            continue  # such classes derive them from other fields
        values = tuple(row.get(name) for row in rows)
        if all(isinstance(value, int) and value > 0 for value in values) and len(set(values)) > 1:
            atoms[name] = values
    return atoms  # type: ignore[return-value]


@functools.lru_cache(maxsize=4)
def _explainer(atoms: tuple[tuple[str, Sizes], ...]) -> Explainer:
    return Explainer(dict(atoms))


def _shapes(recipe: Recipe, models: Sequence[Built], like: WeightShapes | None = None) -> WeightShapes:
    """The formulas of three models, with layers told apart as in `like` or by the first rule that does."""
    names = CONFIG_MAPPING[recipe.model_type].attribute_map
    explain = _explainer(tuple(_atoms(recipe, models[:3]).items()))
    rules = [(like.rule, like.has_windows_apart)] if like else itertools.product(LAYER_RULES, (False, True))
    for rule, has_windows_apart in rules:
        parts = [_parts(built, recipe.model_type, rule, has_windows_apart) for built in models[:3]]
        if any(part is None for part in parts):
            continue
        formulas = _formulas([part for part in parts if part is not None], explain)
        return WeightShapes(
            fields={},
            names={name: own for name, own in names.items() if name in NUMBERS},
            rule=rule,
            has_windows_apart=has_windows_apart,
            outside=formulas.pop(OUTSIDE),
            layers=formulas,
        )
    raise ValueError("layers differ by something that the config does not tell")


def _parts(built: Built, model_type: str, rule: str, has_windows_apart: bool) -> Parts | None:  # noqa: FBT001
    """The model's tensors by kind of layer; None where layers of one kind have different ones."""
    fields = ConfigFields(built.fields, model_type, config_table()[model_type])
    kinds = layer_kinds(built.fields, layer_types(fields), rule, has_windows_apart=has_windows_apart)
    layers: list[dict[str, tuple[int, ...]]] = [{} for _ in kinds]
    parts: Parts = {OUTSIDE: {}}
    for name, shape in built.tensors.items():
        match = re.fullmatch(r"(.*?\.(?:layers|h|blocks|block)\.)(\d+)(\..*)", name)
        if match:
            layers[int(match[2])][f"{match[1]}{{}}{match[3]}"] = shape
        else:
            parts[OUTSIDE][name] = shape
    for kind, layer in zip(kinds, layers, strict=True):
        if parts.setdefault(kind, layer) != layer:
            return None
    return parts


def _formulas(found: Sequence[Parts], explain: Explainer) -> Formulas:
    if any(parts.keys() != found[0].keys() for parts in found):
        raise ValueError("not every kind of layer is in every model")
    formulas: Formulas = {}
    for kind in found[0]:
        tensors = [parts[kind] for parts in found]
        if any(part.keys() != tensors[0].keys() for part in tensors):
            raise ValueError("the models have other tensors")
        formulas[kind] = {
            name: tuple(
                explain.expression(tuple(sizes)) for sizes in zip(*(part[name] for part in tensors), strict=True)
            )
            for name in tensors[0]
        }
    return formulas


def _switch(on: bool, before: WeightShapes, after: WeightShapes) -> Switch:  # noqa: FBT001
    """What is other in `after`."""
    old, new = before.by_part(), after.by_part()
    return Switch(
        on=on,
        removed={
            kind: gone
            for kind, tensors in old.items()
            if (gone := tuple(name for name in tensors if name not in new.get(kind, {})))
        },
        added={
            kind: more
            for kind, tensors in new.items()
            if (more := {name: shape for name, shape in tensors.items() if old.get(kind, {}).get(name) != shape})
        },
    )


def _added(switch: Switch) -> WeightShapes:
    return WeightShapes(fields={}, outside={}, layers=dict(switch.added))


def _fields(recipe: Recipe, shapes: Iterable[WeightShapes], rule: str, switches: Iterable[str]) -> dict[str, Any]:
    """The fields that formulas name, and switches, with the type's defaults."""
    texts = [text for own in shapes for part in own.by_part().values() for shape in part.values() for text in shape]
    wanted = {name for text in texts for name in re.findall(r"[a-z_]\w*", text, re.IGNORECASE)}
    for name in tuple(wanted & DERIVED.keys()):
        wanted |= set(DERIVED[name].fields)
    wanted |= {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"}
    wanted |= {*LAYER_RULES[rule].fields, *switches}
    config_class = CONFIG_MAPPING[recipe.model_type]
    found = {
        name: _default(config_class, name, config_class.attribute_map.get(name, name))
        for name in sorted(wanted - DERIVED.keys())
    }
    return found | {"tie_word_embeddings": bool(getattr(config_class(), "tie_word_embeddings", False))}


def _derived_defaults(recipe: Recipe, fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields without a default that the class makes of others, as expressions over those."""
    config_class = CONFIG_MAPPING[recipe.model_type]
    names, chosen, found = config_class.attribute_map, recipe.fields(), dict[str, str]()
    for name in [name for name, default in fields.items() if default is None]:
        own = names.get(name, name)
        kept = {field: values for field, values in chosen.items() if field not in (name, own)}
        configs = [config_class(**{field: values[index] for field, values in kept.items()}) for index in range(3)]
        sizes = tuple(config.to_dict().get(own) for config in configs)
        if name in ("head_dim", "num_key_value_heads") or not all(isinstance(size, int) for size in sizes):
            continue
        atoms = _atoms(recipe, [Built(config, config.to_dict(), {}) for config in configs])
        try:
            found[name] = Explainer({atom: own for atom, own in atoms.items() if atom != name}).expression(sizes)
        except ValueError:
            continue  # then a config must state it
    return found


def needed_fields(model_type: str, rule: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of the rule that the class does not leave at their default where a config is silent."""
    stated = CONFIG_MAPPING[model_type]().to_dict()
    return tuple(field for field in LAYER_RULES[rule].fields if stated.get(field) != fields.get(field))


def _default(config_class: Any, *wanted: str) -> Any:
    for field in dataclasses.fields(config_class):
        if field.name in wanted and field.default is not dataclasses.MISSING:
            return field.default if isinstance(field.default, int | bool | list | None) else None
    return None


if __name__ == "__main__":
    raise SystemExit(main())
