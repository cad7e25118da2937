"""The reference engine's figures, from config.json to the numbers that it printed itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.kv.specs import MambaSpec
from octavo.planning.reference import recurrence_dtype, reference_specs
from tests.formats.published import CONFIGS
from tests.planning.build import planned
from tools.imports import ROOT

CASES: list[dict[str, Any]] = [
    case
    for case in json.loads((ROOT / "tests/data/oracle/cases.json").read_text())["items"]
    if case.get("model") in CONFIGS
    and case.get("mamba_cache_mode", "none") == "none"
    and (case.get("tp", 1) == 1 or not any(spec["kind"] == "mamba" for spec in case["specs"]))
    and not str(case.get("layout", "L")).startswith("B")
]


def _ask(case: dict[str, Any]) -> Any:
    available = case["available"]
    has_states = any(spec["kind"] == "mamba" for spec in case["specs"])
    return planned(
        case["model"],
        tuple(available) if isinstance(available, list) else available,
        max_model_len=case["max_model_len"],
        max_in_flight_tokens=case["max_in_flight_tokens"],
        block_size=16 if has_states else case["block_size"],
        tensor_parallel_size=case.get("tp", 1),
        pipeline_parallel_size=case.get("pp", 1),
        hybrid=not case.get("hybrid_off"),
        enable_prefix_caching=case.get("prefix_caching", True),
        kv_cache_dtype="int8_per_token_head" if "int8_per_token_head" in case["id"] else "auto",
    )


@pytest.mark.parametrize("case", [case for case in CASES if not case.get("auto_fit")], ids=lambda case: case["id"])
def test_a_config_leads_to_what_the_reference_engine_plans(case: dict[str, Any]) -> None:
    answer, recorded = _ask(case).reference, case["out"]
    if "error" in recorded:
        assert answer.refusal
        return
    assert answer.refusal == ""
    figures = answer.plan.figures
    assert figures.num_blocks == recorded["num_blocks"]
    assert figures.capacity_tokens == recorded["capacity_tokens"]
    assert figures.max_concurrency == recorded["max_concurrency"]
    assert [len(group.layer_names) for group in answer.plan.groups] == [
        len(group["layers"]) for group in recorded["groups"]
    ]


def test_many_recorded_cases_are_asked() -> None:
    assert len(CASES) > 140
    assert len({case["model"] for case in CASES}) > 20


def test_beside_states_blocks_are_as_long_as_the_reference_makes_them() -> None:
    """Known lengths of blocks: Qwen3-Next 544, Granite 4.0 H Small 1040 and Jamba 80 tokens."""
    for model, tokens in (("Qwen3-Next-80B-A3B", 544), ("Granite-4.0-H-Small", 1040), ("Jamba-v0.1", 80)):
        (specs,) = planned(model, 0, max_model_len=4096).specs_by_rank
        made = reference_specs(specs, recurrence_dtype(str(CONFIGS[model]["model_type"]), specs, "bfloat16"), 4096)
        assert {spec.block_size for spec in made.values() if not isinstance(spec, MambaSpec)} == {tokens}
        assert len({spec.page_bytes for spec in made.values()}) == 1


def test_a_plan_with_states_says_what_it_keeps_beyond_the_reference() -> None:
    on = planned("Jamba-v0.1", 2**34, max_model_len=4096).notes
    off = planned("Jamba-v0.1", 2**34, max_model_len=4096, enable_prefix_caching=False).notes
    assert any("prefixes are found again" in note and "float32" in note for note in on)
    assert any("float32" in note and "prefixes" not in note for note in off)
    assert not any("states" in note for note in planned("Llama-3.1-8B", 2**34, max_model_len=4096).notes)
