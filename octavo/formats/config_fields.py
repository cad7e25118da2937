"""The fields of a transformers config that a KV cache depends on, with transformers' own defaults for omitted ones.

`config_defaults.json` beside this file holds, for every causal-LM model type of the supported transformers: its class,
its other names for fields, the defaults of the fields below, the masks its modeling code builds, and the repeating
pattern of its layer types where the config class derives one. `tools/make_config_defaults.py` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from octavo.errors import UnsupportedModelError

MAX_NUMBER = 1 << 31
"""Above every head, size, length and window."""
MAX_LAYERS = 10_000
"""Far above any model, so that a hostile config costs little."""
MAX_SHOWN = 64
"""Letters of a field's value that a refusal shows."""

FIELDS: frozenset[str] = frozenset({
    "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "dtype",
    "num_key_value_heads", "head_dim", "v_head_dim", "num_kv_heads", "multi_query", "new_decoder_architecture",
    "attn_config", "kv_channels", "layer_types", "layers_block_type", "block_types", "sliding_window",
    "use_sliding_window", "max_window_layers", "sliding_window_size", "sliding_window_pattern",
    "prefix_dense_sliding_window_pattern", "first_k_dense_replace", "global_attn_every_n_layers", "local_attention",
    "attention_chunk_size", "no_rope_layers", "no_rope_layer_interval", "full_attention_interval", "full_attn_idxs",
    "attn_layer_indices", "attn_layer_period", "attn_layer_offset", "layer_group_size", "hybrid_override_pattern",
    "linear_attn_config", "attention_types", "window_size", "num_layers", "per_layer_config", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "index_head_dim", "num_kv_shared_layers", "attention_k_eq_v",
    "global_head_dim", "num_global_key_value_heads", "mamba_d_state", "mamba_d_conv", "mamba_expand",
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_ssm", "mamba_dt_rank", "state_size", "conv_kernel",
    "expand", "num_heads", "n_groups", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "intermediate_size",
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_num_heads", "linear_head_dim", "linear_attn_alpha_factor", "n_mamba_heads",
    "mamba_headdim", "mamba_ngroups", "attention_head_dim", "conv_L_cache", "lru_width", "conv1d_width",
    "num_experts_per_tok",
    "is_encoder_decoder", "is_decoder", "use_bidirectional_attention", "cross_attention_layers", "n_recurrent_loops",
    "H_cycles", "backbone_hidden_size", "patcher_config", "attn_layers", "mem_len", "ngram", "prompt_length",
    "rescale_every", "num_blocks", "attention_type", "causal",
})  # fmt: skip
"""Every field that is read anywhere in this package; the table keeps the defaults of these alone."""


OPTIONAL_FIELDS = ("num_key_value_heads", "head_dim", "v_head_dim", "sliding_window")
"""Fields that a config may carry while neither its class nor the modeling code knows them: then they mean nothing."""


class TypeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What transformers' code says about one model type."""

    architecture: str | None = None
    """The causal-LM class; None for a type that is only part of others."""
    text: tuple[str, str] | None = None
    """A composite config: the field that holds the text part, and that part's model type."""
    names: dict[str, str] = {}
    """Usual name of a field -> this type's name for it."""
    defaults: dict[str, Any] = {}
    """Fields and their defaults, under this type's names."""
    masks: tuple[str, ...] = ()
    """Which masks besides the causal one the modeling code builds: `sliding`, `chunked`, `bidirectional`."""
    reads: tuple[str, ...] = ()
    """Those of `OPTIONAL_FIELDS` that the class lacks, but the modeling code reads where a config has them."""
    pattern: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
    """Layer types that the class derives when the config lists none: first ones, repeated ones, last ones."""


@cache
def config_table() -> Mapping[str, TypeFacts]:
    """Model type -> facts."""
    data = resources.files("octavo.formats").joinpath("config_defaults.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, TypeFacts])


class ConfigFields:
    """A config read by the usual names of its fields. **Owns:** nothing. **Never:** changes the config.

    Every value that is not what its field can be raises `UnsupportedModelError` that names the field.
    """

    def __init__(self, values: Mapping[str, Any], model_type: str, facts: TypeFacts) -> None:
        self.model_type = model_type
        self.facts = facts
        self._values = values

    def get(self, name: str) -> Any:
        """The value of field `name`: the config's own, or transformers' default; None when there is neither."""
        assert name in FIELDS, name
        own = self.facts.names.get(name, name)
        if name in OPTIONAL_FIELDS and own not in self.facts.defaults and name not in self.facts.reads:
            return None
        for key in (own, name):
            if key in self._values:
                return self._values[key]
        return self.facts.defaults.get(own)

    def given(self, key: str) -> Any:
        """What the config itself has under exactly this key; None where it has nothing."""
        return self._values.get(key)

    def states(self, name: str) -> bool:
        """Whether the config itself gives the field a value."""
        return self._values.get(name, self._values.get(self.facts.names.get(name, name))) is not None

    def knows(self, name: str) -> bool:
        """Whether the config gives the field a value, or its class has such a field."""
        return self.states(name) or self.facts.names.get(name, name) in self.facts.defaults

    def with_overrides(self, overrides: Mapping[str, Any]) -> ConfigFields:
        """The same config with some fields replaced, for one layer."""
        return ConfigFields({**self._values, **overrides}, self.model_type, self.facts)

    def refuse(self, name: str, why: str, *, is_wrong: bool = False) -> UnsupportedModelError:
        """The error that names field `name` and its value; `is_wrong` where no model can have that value."""
        shown = repr(self.get(name))
        shown = shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 4]} ..."
        return UnsupportedModelError(
            f"The config of this {self.model_type} model has {name} = {shown}: {why}.",
            remedy="Correct the config, or download it again." if is_wrong else "Use another model, or a newer Octavo.",
            field=name,
        )

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0, or None."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_NUMBER:
            raise self.refuse(name, "a whole number is needed, and one that a model can have", is_wrong=True)
        return value

    def positive(self, name: str) -> int:
        """A whole number above 0 that must be there."""
        value = self.whole(name)
        if not value:
            raise self.refuse(name, "a number above 0 is needed", is_wrong=True)
        return value

    def positive_or_absent(self, name: str) -> int | None:
        """A whole number above 0, or None where there is none."""
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(name, "true or false is needed", is_wrong=True)
        return bool(value)

    def list_of(self, name: str, kind: type) -> list[Any] | None:
        """A list of `kind`, or None. A whole number may be written as true or false."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, kind) for v in value):
            raise self.refuse(name, f"a list of {kind.__name__} is needed", is_wrong=True)
        if len(value) > MAX_LAYERS:
            raise self.refuse(name, f"more than {MAX_LAYERS} entries are not believed")
        return list(value)

    def of_layer(self, name: str, index: int, num_layers: int) -> int | None:
        """The entry for one layer where the field lists a whole number for each; None where it is no list."""
        if not isinstance(self.get(name), (list, tuple)):
            return None
        values: list[int] = self.list_of(name, int) or []
        if len(values) != num_layers:
            raise self.refuse(name, f"it lists {len(values)} layers instead of {num_layers}")
        if not 0 <= values[index] < MAX_NUMBER:
            raise self.refuse(name, f"layer {index} cannot have {values[index]}")
        return values[index]
