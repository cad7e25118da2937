from __future__ import annotations

from typing import Any

import pytest

from octavo.planning.layer_rules import LAYER_RULES, layer_kinds


@pytest.mark.parametrize(
    ("rule", "fields", "different"),
    [
        ("none", {}, []),
        ("first_dense", {"first_k_dense_replace": 2}, [2, 3, 4, 5]),
        ("first_dense", {}, [0, 1, 2, 3, 4, 5]),
        ("dense_layers", {"num_dense_layers": 4}, [4, 5]),
        ("sparse_step", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        ("types", {"mlp_layer_types": ["dense", "sparse"]}, [1]),
        ("period", {"expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3, 5]),
        ("interval", {"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 2}, [1, 3]),
        ("interval", {"moe_layer_start_index": 1, "moe_layer_end_index": -1}, [1, 2, 3, 4, 5]),
        ("frequency", {"moe_layer_freq": [0, 1, 1]}, [1, 2]),
        ("first", {}, [0]),
        ("last", {}, [5]),
    ],
)
def test_layers_differ_by_what_the_config_says(rule: str, fields: dict[str, Any], different: list[int]) -> None:
    kinds = layer_kinds(fields, ["full_attention"] * 6, rule, has_windows_apart=False)
    assert [index for index, kind in enumerate(kinds) if kind != "full_attention"] == different
    assert set(LAYER_RULES[rule].fields) >= set(fields)


def test_windows_are_told_apart_only_where_their_tensors_are() -> None:
    types = ["sliding_attention", "full_attention", "chunked_attention"]
    assert layer_kinds({}, types, "none", has_windows_apart=True) == types
    assert set(layer_kinds({}, types, "none", has_windows_apart=False)) == {"full_attention"}
