"""The reference engine's figures, from config.json to the numbers that it printed itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.kv.specs import MambaSpec
from octavo.planning.reference import StateRule, reference_specs, state_rule
from tests.formats.published import CONFIGS
from tests.planning.build import planned
from tools.imports import ROOT

CASES: list[dict[str, Any]] = [
    case
    for case in json.loads((ROOT / "tests/data/oracle/cases.json").read_text())["items"]
    if case.get("model") in CONFIGS
    and case.get("mamba_cache_mode", "none") == "none"
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
        made = reference_specs(specs, state_rule(str(CONFIGS[model]["model_type"]), specs, "bfloat16", 1), 4096)
        assert {spec.block_size for spec in made.values() if not isinstance(spec, MambaSpec)} == {tokens}
        assert len({spec.page_bytes for spec in made.values()}) == 1


def test_a_plan_with_states_says_what_it_keeps_beyond_the_reference() -> None:
    on = planned("Jamba-v0.1", 2**34, max_model_len=4096).notes
    off = planned("Jamba-v0.1", 2**34, max_model_len=4096, enable_prefix_caching=False).notes
    assert any("prefixes are found again" in note and "float32" in note for note in on)
    divided = planned("Jamba-v0.1", 2**34, max_model_len=4096, tensor_parallel_size=2).notes
    assert any("whole states on each rank" in note for note in divided)
    assert any("float32" in note and "prefixes" not in note for note in off)
    assert not any("states" in note for note in planned("Llama-3.1-8B", 2**34, max_model_len=4096).notes)


@pytest.mark.parametrize(
    ("shapes", "is_mamba_2", "part"),
    [
        (((3, 64), (8, 4)), False, ((3, 16), (2, 4))),
        (((3, 64), (8, 4, 4)), False, ((3, 16), (2, 4, 4))),
        (((3, 8 * 4 + 2 * 16), (8, 4, 16)), True, ((3, 8 + 32), (2, 4, 16))),  # one group, which each rank copies
        (((3, 8 * 4 + 2 * 8 * 16), (8, 4, 16)), True, ((3, 8 + 64), (2, 4, 16))),  # eight groups, two for each
        (((8, 4, 4),), False, ((2, 4, 4),)),
        (((2, 64),), False, ((2, 16),)),
    ],
)
def test_the_reference_divides_states_over_ranks(
    shapes: tuple[tuple[int, ...], ...], is_mamba_2: bool, part: tuple[tuple[int, ...], ...]
) -> None:
    state = MambaSpec(block_size=16, shapes=shapes, dtypes=("bfloat16", "float32")[: len(shapes)])
    made = reference_specs({"a": state}, StateRule("float32", is_mamba_2, 4), 4096)["a"]
    assert isinstance(made, MambaSpec)
    assert made.shapes == part


def test_states_that_the_reference_cannot_divide_are_refused_in_its_name() -> None:
    asked = planned("Qwen3-Next-80B-A3B", 2**34, max_model_len=4096, tensor_parallel_size=64)
    assert asked.reference.plan is None
    assert "does not divide" in asked.reference.refusal
    assert asked.plan.figures.num_blocks > 1


@pytest.mark.parametrize("caching", [True, False])
def test_keeping_states_for_prefixes_costs_no_room(caching: bool) -> None:
    """Granite keeps its states in float32 in both engines: the null block left out, as many tokens as the reference's
    default, which reuses no prefixes, and more than the reference where it does."""
    recorded = {
        case["mamba_cache_mode"]: case["out"]["capacity_tokens"]
        for case in json.loads((ROOT / "tests/data/oracle/cases.json").read_text())["items"]
        if case["id"] in ("Granite-4.0-H-Small/tp1pp1/none/16g", "Granite-4.0-H-Small/tp1pp1/align/16g")
    }
    figures = planned(
        "Granite-4.0-H-Small", 16 * 2**30, max_model_len=131072, enable_prefix_caching=caching
    ).plan.figures
    assert figures.num_blocks == 1008
    assert (figures.capacity_tokens, recorded["none"]) == (131072 * 1007 // 136, 131072 * 1008 // 136)
    assert figures.capacity_tokens > recorded["align"]
