"""The JSON form: the keys that programs rely on, and sums that must hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.planning.document import document
from octavo.planning.forecast import forecast
from octavo.planning.remedies import find_remedies
from tests.planning.build import GIB, inquiry, planned, subject

KEYS = {
    "version", "fits", "model", "settings", "num_blocks", "usable_blocks", "bytes_per_block", "max_model_len",
    "capacity_tokens", "max_concurrency", "min_reusable_prefix_tokens", "per_request", "lengths", "groups", "tensors",
    "ranks", "weights", "estimates", "reference", "does_not_fit", "notes",
}  # fmt: skip
COSTS = {"fixed_bytes", "bytes_per_token", "ideal_bytes", "reserved_bytes", "held_bytes", "padding_bytes"}


def plain(asked: Any, remedies: Any = ()) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document(asked, remedies)))
    return made


def test_the_keys_are_those_that_are_promised() -> None:
    made = plain(planned("Gemma-3-27b", 24 * GIB, max_model_len=32768, lengths=(1024,)))
    assert set(made) == KEYS
    assert set(made["per_request"]) == COSTS
    assert set(made["groups"][0]) > COSTS
    assert set(made["ranks"][0]) > COSTS
    assert {"num_blocks", "capacity_tokens", "max_concurrency", "groups"} < set(made["reference"])
    assert made["fits"] is True
    assert made["does_not_fit"] is None


def test_what_does_not_fit_has_the_same_keys_and_says_what_would() -> None:
    about = subject("Gemma-3-27b")
    asked = forecast(about, inquiry(4 * GIB, max_model_len=131072))
    made = plain(asked, find_remedies(about, asked))
    assert set(made) == KEYS
    assert made["fits"] is False
    assert made["max_concurrency"] < 1
    assert made["capacity_tokens"] < 131072
    told = made["does_not_fit"]
    assert told["needed_bytes"] > told["available_bytes"] == 4 * GIB
    assert 0 < told["longest_max_model_len"] < 131072
    assert told["smallest_kv_memory_bytes"] > 4 * GIB
    assert len(told["remedies"]) == 3


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("Gemma-3-27b", {}),
        ("Llama-3.1-8B", {"tensor_parallel_size": 4}),
        ("Gemma-3-27b", {"pipeline_parallel_size": 4, "tensor_parallel_size": 2}),
        ("Qwen3-Next-80B-A3B", {}),
        ("DeepSeek-V3", {"kv_cache_dtype": "fp8"}),
    ],
)
def test_bytes_add_up(model: str, more: dict[str, Any]) -> None:
    made = plain(planned(model, 24 * GIB, max_model_len=8192, **more))
    ranks, groups = made["ranks"], made["groups"]
    for rank in ranks:
        assert sum(tensor["size_bytes"] for tensor in rank["tensors"]) == rank["pool_bytes"]
        assert rank["pool_bytes"] + rank["unused_bytes"] == rank["kv_bytes"] == 24 * GIB
        assert rank["pool_bytes"] == made["num_blocks"] * rank["bytes_per_block"]
        assert rank["ideal_bytes"] <= rank["held_bytes"] <= rank["reserved_bytes"]
    assert made["tensors"] == ranks[0]["tensors"]
    for key in COSTS:
        assert made["per_request"][key] == sum(group[key] for group in groups)
    cost = made["per_request"]
    if not any(group["kind"] == "mamba" for group in groups):
        assert cost["ideal_bytes"] == cost["fixed_bytes"] + 8192 * cost["bytes_per_token"]
    assert made["lengths"][0]["max_concurrency"] == made["max_concurrency"]
    assert made["lengths"][0]["capacity_tokens"] == made["capacity_tokens"]


def test_padding_is_what_narrow_groups_leave() -> None:
    """Gemma 3 27B as the reference groups it: 7 groups of 10, two layers of padding in the two narrow ones."""
    asked = planned("Gemma-3-27b", 24 * GIB, max_model_len=32768)
    made = plain(asked)
    assert made["per_request"]["padding_bytes"] == 0
    page = 16 * 2 * 16 * 128 * 2
    held = {len(group["layers"]): group["padding_bytes"] for group in made["reference"]["groups"]}
    assert held == {9: 193 * page, 8: 2 * 193 * page, 10: 0}


def test_prefixes_that_are_never_reused_have_no_shortest() -> None:
    assert plain(planned("Llama-3.1-8B", max_model_len=64))["min_reusable_prefix_tokens"] == 16
    off = planned("Llama-3.1-8B", max_model_len=64, enable_prefix_caching=False)
    assert plain(off)["min_reusable_prefix_tokens"] is None
    states = plain(planned("Qwen3-Next-80B-A3B", GIB, max_model_len=4096))
    assert states["min_reusable_prefix_tokens"] == states["groups"][0]["block_size"] > 16


def test_a_reference_without_a_plan_has_nulls_and_a_reason() -> None:
    made = plain(planned("Gemma-3-27b", GIB, max_model_len=131072))["reference"]
    assert made["fits"] is False
    assert made["num_blocks"] is not None
    assert "131072" in made["refusal"]
