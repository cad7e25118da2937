"""transformers' causal models on the meta device, with chosen numbers in every field, and with one field changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.formats.config_fields import config_table

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
    "linear_conv_kernel_dim": (4, 3, 6, 9), "global_head_dim": (66, 86, 94, 118),
}  # fmt: skip
"""Field -> its value in each of the four models. No two fields are alike in all of them."""

_STATES: dict[str, tuple[int, ...]] = {
    "mamba_expand": (2, 3, 2, 3), "mamba_n_heads": (4, 12, 8, 16), "mamba_d_head": (24, 30, 56, 66),
    "mamba_n_groups": (1, 3, 2, 4), "mamba_d_state": (9, 15, 21, 33), "mamba_d_conv": (3, 5, 7, 6),
}  # fmt: skip

_GLOBAL_HEADS: dict[str, tuple[Any, ...]] = {
    "layer_types": tuple(["sliding_attention", "full_attention"] * (n // 2) for n in NUMBERS["num_hidden_layers"]),
    "num_kv_shared_layers": (2, 4, 6, 4), "global_head_dim": (66, 86, 94, 118),
    "num_global_key_value_heads": (1, 3, 4, 8),
}  # fmt: skip

SPECIAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "bamba": _STATES,
    "diffllama": {"num_attention_heads": (8, 12, 8, 16), "num_key_value_heads": (2, 6, 4, 8)},
    "falcon": {"num_kv_heads": (2, 3, 2, 4)},
    "falcon_h1": _STATES | {"mamba_d_ssm": (80, 312, 400, 960), "mamba_d_head": (20, 26, 50, 60)},
    "gemma3n_text": {name: _GLOBAL_HEADS[name] for name in ("layer_types", "num_kv_shared_layers")}
    | {"activation_sparsity_pattern": tuple([0.0] * n for n in NUMBERS["num_hidden_layers"])},
    "gpt_neo": {"attention_types": tuple([[["global", "local"], n // 2]] for n in NUMBERS["num_hidden_layers"])},
    "gemma4_text": _GLOBAL_HEADS,
    "gemma4_unified_text": _GLOBAL_HEADS,
    "granitemoehybrid": _STATES | {"layer_types": tuple(["mamba", "attention", "mamba"] * n for n in (2, 3, 4, 3))}
    | {"num_hidden_layers": (6, 9, 12, 9)},
    "mamba2": {
        "expand": (2, 3, 2, 3), "num_heads": (4, 12, 8, 16), "head_dim": (24, 30, 56, 66), "n_groups": (1, 3, 2, 4),
        "state_size": (9, 15, 21, 33), "conv_kernel": (3, 5, 7, 6),
    },
}  # fmt: skip
"""Types whose classes want numbers that belong together, and the numbers."""

_NOT_SHAPES = frozenset({"dtype", "torch_dtype", "use_cache", "return_dict"})


class Built(NamedTuple):
    """One model."""

    config: Any
    fields: dict[str, Any]
    """The config as its file would have it."""
    tensors: dict[str, tuple[int, ...]]
    """Shapes of the parameters by name."""

    @property
    def num_parameters(self) -> int:
        return sum(map(math.prod, self.tensors.values()))


class Probe(NamedTuple):
    """The first model with one field changed."""

    field: str
    value: Any
    built: Built


class Recipe(NamedTuple):
    """How a type's models are made."""

    model_type: str
    architecture: str
    extra: Mapping[str, tuple[Any, ...]] = {}
    """More fields and their values in each of the models."""
    without: frozenset[str] = frozenset()
    """Fields of `NUMBERS` that stay at their defaults."""

    def build(self, index: int, **changes: Any) -> Built:
        """The model with the numbers of one set. Raises whatever its classes raise."""
        config_class = CONFIG_MAPPING[self.model_type]
        fields = {name: values[index] for name, values in self.fields().items()} | changes
        config = config_class(**{"tie_word_embeddings": False} | fields)
        with torch.device("meta"):
            model = getattr(transformers, self.architecture)(config)
        tensors = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        # Some classes make others of a field, and forget it.
        stated = {name: fields[name] for name in SPECIAL.get(self.model_type, {})} | config.to_dict()
        return Built(config, stated | {"model_type": self.model_type}, tensors)

    def fields(self) -> dict[str, tuple[Any, ...]]:
        """The type's own fields, and their values."""
        config_class = CONFIG_MAPPING[self.model_type]
        names, known = config_class.attribute_map, field_names(self.model_type) | {"pad_token_id"}
        numbers = NUMBERS | {"pad_token_id": (0,) * 4}
        found: dict[str, tuple[Any, ...]] = {}
        for name, values in numbers.items():
            own = next((own for own in (names.get(name, name), name) if own in known), None)
            fixed = isinstance(getattr(config_class, str(own), None), property)
            if own is not None and not fixed and name not in self.without:
                found[own] = values
        if "kv_lora_rank" in found and "num_key_value_heads" in found:
            found["num_key_value_heads"] = found[names.get("num_attention_heads", "num_attention_heads")]
        if "pad_token_id" not in {field.name for field in dataclasses.fields(config_class)}:
            del found["pad_token_id"]
        return found | SPECIAL.get(self.model_type, {}) | dict(self.extra)

    def probes(self) -> Iterator[Probe]:
        """The first model with each field changed that has a plain default, where the class accepts the change."""
        base = self.build(0)
        chosen = self.fields()
        for field in dataclasses.fields(CONFIG_MAPPING[self.model_type]):
            default = base.fields.get(field.name)
            if field.name in _NOT_SHAPES or field.name in ("transformers_version", "model_type"):
                continue
            for value in _other_values(default, is_chosen=field.name in chosen):
                try:
                    built = self.build(0, **{field.name: value})
                except Exception:
                    continue
                if built.fields.get(field.name) == value:
                    yield Probe(field.name, value, built)
                    break


def field_names(model_type: str) -> set[str]:
    """Fields that the class has, or its modeling code reads."""
    fields = {field.name for field in dataclasses.fields(CONFIG_MAPPING[model_type])}
    return (fields | set(config_table()[model_type].reads)) - {"sliding_window"}


def _other_values(default: Any, *, is_chosen: bool) -> list[Any]:
    if isinstance(default, bool):
        return [not default]
    if is_chosen:
        return [None]
    if isinstance(default, int):
        return [default + 1, 2 * default, default // 2]
    return [12, True] if default is None else []
