"""A tiny random model of any causal-LM type of transformers, saved as a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from tests.models.architectures import randomise
from tests.models.walk.sizes import LATENT_SIZES, OPTIONAL, OVERRIDES, SIZES, UNBUILDABLE, VARIANTS

NUM_LAYERS = (4, 5, 6)
"""The first of these that shows every type of layer that the class's default has."""


def model_types() -> list[str]:
    """Every causal-LM model type of the installed transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(name: str) -> Any:
    """transformers' config object of a model type, or of one of `VARIANTS`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = name if name not in VARIANTS else name.partition("-")[0]
    return _config(CONFIG_MAPPING[model_type], VARIANTS.get(name, {}))


def save_tiny_model(name: str, folder: Path, *, spread: float) -> torch.nn.Module | None:
    """Save a random float32 model in `folder` and return it; of a type of `UNBUILDABLE` the config alone.

    Where a composite model needs a package that is not installed, the weights are those of its text part alone.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = tiny_config(name)
    if name in UNBUILDABLE:
        config.save_pretrained(folder)
        return None
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        model = AutoModelForCausalLM.from_config(config, **options).eval()
    except ImportError:
        model = AutoModelForCausalLM.from_config(config.get_text_config(), **options).eval()
    randomise(model, spread)
    model.save_pretrained(folder)
    # A class's habits of generating (a forced last token, suppressed first ones) are none of its model's.
    model.generation_config = GenerationConfig()
    if type(model.config) is not type(config) and config.get_text_config() is not config:
        config.save_pretrained(folder)
    return model


def _config(config_class: Any, changes: dict[str, Any]) -> Any:
    known = {field.name: field.default for field in dataclasses.fields(config_class)}
    changes = OVERRIDES.get(config_class.model_type, {}) | changes
    fields = {
        name: SIZES[name]
        for name, default in known.items()
        if name in SIZES and (default is not None or name in OPTIONAL)
    }
    if "kv_lora_rank" in known:
        fields |= {name: value for name, value in LATENT_SIZES.items() if name in fields}
    for name, part_class in _parts(config_class).items():
        if name in known:
            fields[name] = _config(part_class, changes.get(name, {})).to_dict()
            changes = {key: value for key, value in changes.items() if key != name}
    fields |= changes
    names = getattr(config_class, "attribute_map", {})
    count = names.get("num_hidden_layers", "num_hidden_layers")
    if count not in known or count in fields:
        return config_class(**fields)
    wanted = _layer_types(config_class, {})
    lengths = [length for length in NUM_LAYERS if wanted <= _layer_types(config_class, {**fields, count: length})]
    return config_class(**{**fields, count: (lengths or NUM_LAYERS)[0]})


def _parts(config_class: Any) -> dict[str, Any]:
    """Field -> config class of each part of a composite config."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    specs = getattr(config_class, "sub_configs_defaults", None) or {}
    # Not `get`: the mapping loads its classes when one is asked for.
    known = {name: spec.model_type in CONFIG_MAPPING for name, spec in specs.items()}
    return {name: CONFIG_MAPPING[spec.model_type] if known[name] else spec.config_class for name, spec in specs.items()}


def _layer_types(config_class: Any, fields: dict[str, Any]) -> set[str]:
    """The types of layers of a config; empty where it lists none, or is none."""
    try:
        config = config_class(**fields)
    except Exception:  # the class refuses the length, or to be built without a field
        return set()
    return set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
