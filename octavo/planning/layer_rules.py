"""What makes layers of one model different, beside their attention: experts here and not there, a first or last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo.formats.layer_types import CHUNKED, FULL, SLIDING


class LayerRule(NamedTuple):
    """How a config tells which layers are different."""

    fields: tuple[str, ...]
    """What it reads."""
    differs: Callable[[Mapping[str, Any], int, int], bool]
    """(fields, index of a layer, number of layers) -> whether this layer is."""
    suffix: str = "+experts"


def _number(values: Mapping[str, Any], name: str, absent: int) -> int:
    value = values.get(name)
    return absent if value is None else int(value)


def _by_sparse_step(values: Mapping[str, Any], index: int, count: int) -> bool:
    step = _number(values, "decoder_sparse_step", 1) or 1
    return index not in (values.get("mlp_only_layers") or ()) and (index + 1) % step == 0


def _by_types(values: Mapping[str, Any], index: int, count: int) -> bool:
    listed = values.get("mlp_layer_types") or ()
    return index < len(listed) and listed[index] == "sparse"


def _by_period(values: Mapping[str, Any], index: int, count: int) -> bool:
    period = _number(values, "expert_layer_period", 1) or 1
    return index % period == _number(values, "expert_layer_offset", 0)


def _by_interval(values: Mapping[str, Any], index: int, count: int) -> bool:
    start, end = _number(values, "moe_layer_start_index", 0), _number(values, "moe_layer_end_index", -1)
    last = count - 1 if end == -1 else end
    return start <= index <= last and (index + 1) % (_number(values, "moe_layer_interval", 1) or 1) == 0


def _by_frequency(values: Mapping[str, Any], index: int, count: int) -> bool:
    listed = values.get("moe_layer_freq") or ()
    return isinstance(listed, list) and index < len(listed) and bool(listed[index])


LAYER_RULES: dict[str, LayerRule] = {
    "none": LayerRule((), lambda values, index, count: False),
    "first_dense": LayerRule(
        ("first_k_dense_replace",), lambda values, index, count: index >= _number(values, "first_k_dense_replace", 0)
    ),
    "dense_layers": LayerRule(
        ("num_dense_layers",), lambda values, index, count: index >= _number(values, "num_dense_layers", 0)
    ),
    "sparse_step": LayerRule(("decoder_sparse_step", "mlp_only_layers"), _by_sparse_step),
    "types": LayerRule(("mlp_layer_types",), _by_types),
    "period": LayerRule(("expert_layer_period", "expert_layer_offset"), _by_period),
    "interval": LayerRule(("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"), _by_interval),
    "frequency": LayerRule(("moe_layer_freq",), _by_frequency),
    "first": LayerRule((), lambda values, index, count: index == 0, "+first"),
    "last": LayerRule((), lambda values, index, count: index == count - 1, "+last"),
    "shared": LayerRule(
        ("num_kv_shared_layers",),
        lambda values, index, count: index >= count - _number(values, "num_kv_shared_layers", 0),
        "+shared",
    ),
}


def layer_kinds(values: Mapping[str, Any], types: list[str], rule: str, *, has_windows_apart: bool) -> list[str]:
    """The kind of each layer: its type, and whether it differs by `rule`.

    Windows and chunks count as full attention unless their tensors are others (`has_windows_apart`).
    """
    plain = [FULL if kind in (SLIDING, CHUNKED) and not has_windows_apart else kind for kind in types]
    own = LAYER_RULES[rule]
    return [f"{kind}{own.suffix if own.differs(values, index, len(plain)) else ''}" for index, kind in enumerate(plain)]
