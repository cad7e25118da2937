"""Which layer is of which type, as the config lists it or as transformers derives it.

Most configs list `layer_types`. For those that do not, a field says it (`full_attention_interval`, `attention_types`,
...), or the class has a fixed pattern (in the table of `config_fields`). Some fields mean different things in different
families; what they do is keyed by model type below.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.formats.config_fields import MAX_LAYERS, ConfigFields

FULL, SLIDING, CHUNKED, LINEAR, CONV, HYBRID = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "conv",
    "hybrid",
)

LEGACY_NAMES = {"attention": FULL, "mamba": LINEAR, "recurrent": LINEAR, "global": FULL, "local": SLIDING}
"""Names of layer types in older configs."""

HYBRID_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""The alphabet of `hybrid_override_pattern`."""

LAST_IS_FULL = frozenset({"gemma4_text", "gemma4_unified_text"})
"""transformers makes the last layer a full one, whatever the config lists."""


def layer_types(fields: ConfigFields) -> list[str]:
    """The type of each layer, in transformers' words.

    Raises `UnsupportedModelError` naming the field when the types cannot be told.
    """
    types = _listed(fields) or _said_by_a_field(fields) or _derived(fields)
    if fields.model_type in LAST_IS_FULL:
        types[-1] = FULL
    return types


def _listed(fields: ConfigFields) -> list[str] | None:
    for name in ("layer_types", "layers_block_type"):
        listed = fields.list_of(name, str)
        if listed:
            num_layers = fields.whole("num_hidden_layers")
            # Some classes count their layers by this list alone.
            if num_layers and fields.states("num_hidden_layers") and num_layers != len(listed):
                raise fields.refuse(name, f"it lists {len(listed)} layers, but num_hidden_layers is {num_layers}")
            return [LEGACY_NAMES.get(entry, entry) for entry in listed]
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not set(pattern) <= set(HYBRID_LETTERS) or not 0 < len(pattern) <= MAX_LAYERS:
        raise fields.refuse("hybrid_override_pattern", "it may hold the letters M, *, - and E alone")
    return [HYBRID_LETTERS[letter] for letter in pattern]


def num_layers(fields: ConfigFields) -> int:
    """`num_hidden_layers`, bounded. Raises `UnsupportedModelError` when it is missing or absurd."""
    # LongCat counts pairs of attention blocks, and each block caches.
    count = 2 * fields.positive("num_layers") if _counts_pairs(fields) else fields.positive("num_hidden_layers")
    if count > MAX_LAYERS:
        raise fields.refuse("num_hidden_layers", f"more than {MAX_LAYERS} layers are not believed")
    return count


def _counts_pairs(fields: ConfigFields) -> bool:
    return fields.model_type == "longcat_flash"


def _every(fields: ConfigFields, *, period: int, at: int, on: str = FULL, off: str = SLIDING) -> list[str]:
    """`on` for each layer whose index is `at` modulo `period`, else `off`."""
    return [on if index % period == at else off for index in range(num_layers(fields))]


def _said_by_a_field(fields: ConfigFields) -> list[str] | None:
    """Fields that mean the same wherever they appear."""
    for name, rule in FIELD_RULES.items():
        if fields.get(name) is not None:
            return rule(fields)
    return None


def _by_indices(fields: ConfigFields, name: str, off: str) -> list[str]:
    indices = set(fields.list_of(name, int) or ())
    return [FULL if index in indices else off for index in range(num_layers(fields))]


def _by_attention_types(fields: ConfigFields) -> list[str]:
    """GPT-Neo: `[[["global", "local"], 12]]` is that pair twelve times."""
    types: list[str] = []
    for entry in fields.list_of("attention_types", list) or []:
        if len(entry) != 2 or not isinstance(entry[0], list) or not isinstance(entry[1], int):
            raise fields.refuse("attention_types", "pairs of (types, how often) are needed")
        if entry[1] * len(entry[0]) > MAX_LAYERS or not set(entry[0]) <= {"global", "local"}:
            raise fields.refuse("attention_types", "it may list global and local layers alone")
        types += [LEGACY_NAMES[name] for name in entry[0]] * entry[1]
    if len(types) != num_layers(fields):
        raise fields.refuse("attention_types", f"it lists {len(types)} layers instead of {num_layers(fields)}")
    return types


def _by_linear_attn_config(fields: ConfigFields) -> list[str]:
    """Kimi Linear lists its layers from 1."""
    config = fields.get("linear_attn_config")
    full, linear = (config.get(key) if isinstance(config, dict) else None for key in ("full_attn_layers", "kda_layers"))
    if not isinstance(full, list) or not isinstance(linear, list):
        raise fields.refuse("linear_attn_config", "full_attn_layers and kda_layers are needed")
    count = num_layers(fields)
    if sorted(map(str, [*full, *linear])) != sorted(map(str, range(1, count + 1))):
        raise fields.refuse("linear_attn_config", f"full_attn_layers and kda_layers must name layers 1 to {count} once")
    return [FULL if index + 1 in full else LINEAR for index in range(count)]


def _by_block_types(fields: ConfigFields) -> list[str]:
    """RecurrentGemma repeats its blocks; its attention blocks are local ones."""
    blocks = fields.list_of("block_types", str) or []
    if not blocks or not set(blocks) <= {"recurrent", "attention"}:
        raise fields.refuse("block_types", "it may list recurrent and attention blocks alone")
    kinds = [LINEAR if block == "recurrent" else SLIDING for block in blocks]
    return [kinds[index % len(kinds)] for index in range(num_layers(fields))]


FIELD_RULES: dict[str, Callable[[ConfigFields], list[str]]] = {
    "attention_types": _by_attention_types,
    "linear_attn_config": _by_linear_attn_config,
    "block_types": _by_block_types,
    "full_attn_idxs": lambda fields: _by_indices(fields, "full_attn_idxs", CONV),
    "attn_layer_indices": lambda fields: _by_indices(fields, "attn_layer_indices", LINEAR),
    "layer_group_size": lambda fields: _every(
        fields, period=fields.positive("layer_group_size"), at=fields.positive("layer_group_size") - 1, off=LINEAR
    ),
}
"""Field -> how it says the types of the layers."""


def _derived(fields: ConfigFields) -> list[str]:
    """Fields whose meaning depends on the family, then the class's own pattern, then one type for all layers."""
    rule = FAMILY_RULES.get(fields.model_type)
    types = rule(fields) if rule is not None else None
    if types is not None:
        return types
    if fields.facts.pattern is not None:
        return _from_pattern(fields)
    if "layer_types" in fields.facts.defaults or "layers_block_type" in fields.facts.defaults:
        raise fields.refuse("layer_types", "it is absent, and how this class fills it in is not known")
    if "sliding" in fields.facts.masks:
        # No list of types, but a mask that heeds the window: every layer has it.
        return [SLIDING if fields.positive_or_absent("sliding_window") else FULL] * num_layers(fields)
    return [FULL] * num_layers(fields)


def _from_pattern(fields: ConfigFields) -> list[str]:
    first, repeated, last = fields.facts.pattern or ((), (FULL,), ())
    count = num_layers(fields)
    types = [
        first[index] if index < len(first) else repeated[(index - len(first)) % len(repeated)] for index in range(count)
    ]
    if last:
        types[max(0, count - len(last)) :] = last[-count:]
    return types


def _sliding_window_pattern(fields: ConfigFields) -> list[str] | None:
    """Every p-th layer is full."""
    if not fields.states("sliding_window_pattern"):
        return None
    period = fields.positive("sliding_window_pattern")
    return _every(fields, period=period, at=period - 1)


def _exaone4(fields: ConfigFields) -> list[str]:
    if not fields.positive_or_absent("sliding_window"):
        return [FULL] * num_layers(fields)
    period = fields.positive("sliding_window_pattern")
    return _every(fields, period=period, at=period - 1)


def _cohere2_moe(fields: ConfigFields) -> list[str]:
    """The leading dense layers have a pattern of their own."""
    num_dense = min(fields.whole("first_k_dense_replace") or 0, num_layers(fields))
    dense_period = fields.positive("prefix_dense_sliding_window_pattern")
    period = fields.positive("sliding_window_pattern")
    places = [(i, dense_period) for i in range(num_dense)] + [
        (i, period) for i in range(num_layers(fields) - num_dense)
    ]
    return [SLIDING if (index + 1) % length else FULL for index, length in places]


def _from_max_window_layers(fields: ConfigFields) -> list[str]:
    """The first `max_window_layers` layers are full, the others have the window."""
    first = fields.whole("max_window_layers") or 0
    window = sliding_window(fields)
    return [SLIDING if window and index >= first else FULL for index in range(num_layers(fields))]


def _qwen2_moe(fields: ConfigFields) -> list[str]:
    """Every other one of the first `max_window_layers` layers has the window."""
    first = fields.whole("max_window_layers") or 0
    window = sliding_window(fields)
    return [SLIDING if window and index % 2 == 0 and index < first else FULL for index in range(num_layers(fields))]


def _rotary_layers(fields: ConfigFields) -> list[bool]:
    listed = fields.list_of("no_rope_layers", int)
    count = num_layers(fields)
    if listed:
        if len(listed) != count:
            raise fields.refuse("no_rope_layers", f"it lists {len(listed)} layers instead of {count}")
        return [bool(entry) for entry in listed]
    interval = fields.positive("no_rope_layer_interval")
    return [(index + 1) % interval != 0 for index in range(count)]


def _smollm3(fields: ConfigFields) -> list[str]:
    window = sliding_window(fields)
    return [SLIDING if window and not rotary else FULL for rotary in _rotary_layers(fields)]


def _llama4(fields: ConfigFields) -> list[str]:
    chunk = fields.positive_or_absent("attention_chunk_size")
    return [CHUNKED if chunk and rotary else FULL for rotary in _rotary_layers(fields)]


def _full_attention_interval(fields: ConfigFields) -> list[str] | None:
    if not fields.states("full_attention_interval"):
        return None
    period = fields.positive("full_attention_interval")
    return _every(fields, period=period, at=period - 1, off=LINEAR)


def _olmo_hybrid(fields: ConfigFields) -> list[str]:
    """Every fourth layer is full, and the last one if there is none."""
    types = _every(fields, period=4, at=3, off=LINEAR)
    if FULL not in types:
        types[-1] = FULL
    return types


def _jamba(fields: ConfigFields) -> list[str]:
    period, offset = fields.positive("attn_layer_period"), fields.whole("attn_layer_offset") or 0
    return _every(fields, period=period, at=offset, off=LINEAR)


def _zamba(fields: ConfigFields) -> list[str]:
    """Two linear layers, a hybrid one, then the period counted anew."""
    period, offset = fields.positive("attn_layer_period"), fields.whole("attn_layer_offset") or 0
    start = [LINEAR, LINEAR, HYBRID]
    return start + _every(fields, period=period, at=offset, on=HYBRID, off=LINEAR)[: max(0, num_layers(fields) - 3)]


def _gpt_neo(fields: ConfigFields) -> list[str]:
    """What its class fills in for absent `attention_types`."""
    return _every(fields, period=2, at=0)


def _afmoe(fields: ConfigFields) -> list[str]:
    period = fields.positive("global_attn_every_n_layers")
    return _every(fields, period=period, at=period - 1)


def _modernbert(fields: ConfigFields) -> list[str]:
    """Here the first of each group is the full one."""
    period = fields.positive("global_attn_every_n_layers") if fields.states("global_attn_every_n_layers") else 3
    return _every(fields, period=period, at=0)


FAMILY_RULES: dict[str, Callable[[ConfigFields], list[str] | None]] = {
    **dict.fromkeys(("gemma3_text", "cohere2"), _sliding_window_pattern),
    **dict.fromkeys(("exaone4", "exaone_moe"), _exaone4),
    "cohere2_moe": _cohere2_moe,
    **dict.fromkeys(("qwen2", "qwen3", "dots1"), _from_max_window_layers),
    "qwen2_moe": _qwen2_moe,
    "smollm3": _smollm3,
    "llama4_text": _llama4,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _full_attention_interval),
    "olmo_hybrid": _olmo_hybrid,
    "gpt_neo": _gpt_neo,
    "jamba": _jamba,
    "zamba": _zamba,
    "afmoe": _afmoe,
    "modernbert-decoder": _modernbert,
}
"""Model type -> what its config class makes of fields that other classes read differently or not at all."""


def sliding_window(fields: ConfigFields) -> int | None:
    """The window in tokens that sliding layers have, the token itself included; None when it is switched off."""
    if fields.get("use_sliding_window") is not None and not fields.flag("use_sliding_window"):
        return None
    if fields.get("local_attention") is not None:  # ModernBERT's decoder: the whole span, of which half lies behind
        return fields.positive("local_attention") // 2
    if fields.get("sliding_window_size") is not None and fields.model_type == "mimo_v2_flash":
        return fields.positive("sliding_window_size") + 1
    return fields.positive_or_absent("window_size" if fields.knows("attention_types") else "sliding_window")
