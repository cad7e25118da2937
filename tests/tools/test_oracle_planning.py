from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import BlocksOverrideError, PlanError
from tools.oracle_cases import plan_case
from tools.oracle_planning import ERROR_KINDS, answer, compare, judge, run_planning

FILE = Path(__file__).parent.parent / "data" / "oracle" / "cases.json"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads(FILE.read_text())["items"]}


def changed(case_id: str, **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(CASES[case_id]) | changes


def crash(name: str) -> dict[str, Any]:
    return {"error": name, "error_kind": "some text of the reference"}


def test_every_recorded_case_agrees_or_falls_under_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_planning(FILE) == 0
    assert capsys.readouterr().out == "planning: agree 296, improved 1, differ 0, skipped 5\n"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("num_blocks",), 8193),
        (("groups", 0, "layers"), ["L0", "L1"]),
        (("groups", 1, "window"), 1025),
        (("groups", 0, "block_size"), 32),
        (("groups", 0, "page_bytes"), 1),
        (("stages", 0, "pool_bytes"), 1),
        (("stages", 0, "tensors", 1, 0), 1),
        (("stages", 0, "tensors", 0, 1), ["L1", "L0"]),
        (("max_model_len",), 4095),
        (("max_concurrency",), 18.24),
        (("capacity_tokens",), 74730),
        (("blocks_per_request", 1), 192),
        (("one_request_bytes", 0), 1),
        (("scheduler_block_size",), 32),
        (("hash_block_size",), 8),
        (("page_bytes", 0), 1),
    ],
)
def test_any_other_number_differs_and_is_shown(path: tuple[Any, ...], value: Any) -> None:
    case = changed("syn/seed-4layer-nocache")
    place = case["out"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    verdict, shown = judge(case)
    assert verdict == "differ"
    assert len(shown) >= 1
    assert path[0] in shown[0]


def test_refusals_are_compared_by_kind_and_length() -> None:
    for out in (
        {"error": "ValueError", "error_kind": "no_memory"},
        {"error": "ValueError", "error_kind": "too_small", "error_estimated_max_len": 4081},
        {"error": "ValueError", "error_kind": "too_small"},
        CASES["syn/border-one-request+0"]["out"],
    ):
        verdict, shown = judge(changed("syn/border-null-block", out=out))
        assert verdict == "differ", out
        assert shown
    plan_expected = changed("syn/border-one-request+0", out=CASES["syn/border-null-block"]["out"])
    assert judge(plan_expected)[0] == "differ"


def test_texts_of_the_reference_agree_with_a_refusal_of_the_layers() -> None:
    """Kinds beyond the four that the schema names."""
    odd = {"kind": "mla", "block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"}
    chunked = {"kind": "chunked_local", "block_size": 64, "num_kv_heads": 3, "head_size": 128, "dtype": "bfloat16"}
    case = changed("syn/seed-4layer-small", specs=[odd, chunked | {"chunk": 128}])
    case["out"] = {"error": "NotImplementedError", "error_kind": "Layer L0: page size is not divisible"}
    assert answer(case)["error_kind"] == "layout"
    assert compare(case["out"], answer(case)) == ["page_bytes: recorded is None, Octavo has [73728, 98304]"]


def test_block_outermost_layouts_are_skipped() -> None:
    assert judge(changed("syn/packed-BLHNC-seed", out={}))[0] == "skipped"


def test_an_empty_stage_is_planned_as_if_it_were_not_there() -> None:
    case = changed("syn/pp2-same", out=crash("ZeroDivisionError"))
    case["stages"].insert(1, [])
    case["available"] = [2**30, 5, 2**30]
    assert judge(case) == ("improved", [])
    assert answer(case)["num_blocks"] == CASES["syn/pp2-same"]["out"]["num_blocks"]
    nothing = changed("syn/pp2-same", stages=[[], []], out=crash("ZeroDivisionError"))
    assert judge(nothing) == ("improved", [])
    poor = case | {"available": [2**20, 0, 2**20]}
    assert judge(poor) == ("improved", [])


def test_full_layers_of_two_windows_share_a_group() -> None:
    case = changed("syn/full-two-windows-field", out=crash("ValueError"))
    case["specs"][1]["window"] = 128
    assert judge(case) == ("improved", [])
    hybrid_off = changed("syn/three-kinds", hybrid_off=True, out=crash("ValueError"))
    assert judge(hybrid_off) == ("improved", [])


def test_a_layer_that_ranks_disagree_about_is_refused() -> None:
    case = changed("syn/pp2-same", out=crash("AssertionError"))
    case["stages"][1][0] = ["L0", 1]
    assert judge(case) == ("improved", [])


def test_an_override_above_memory_is_refused_and_its_remedy_works() -> None:
    case = changed("syn/override-above-memory")
    assert judge(case) == ("improved", [])
    case["out"]["capacity_tokens"] += 1
    assert judge(case)[0] == "differ"


def test_a_crash_without_a_rule_differs() -> None:
    assert judge(changed("syn/pp2-same", out=crash("ZeroDivisionError")))[0] == "differ"


def test_a_case_outside_the_schema_differs_and_does_not_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alien = changed("syn/single-full", id="alien")
    alien["specs"][0]["kind"] = "alien"
    dtype = changed("syn/single-full", id="dtype")
    dtype["specs"][0]["dtype"] = "int3"
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"items": [alien, dtype, CASES["syn/single-full"]]}))
    assert run_planning(path) == 2
    printed = capsys.readouterr().out
    assert "alien: the case does not keep the schema: ValueError(\"unknown kind of layer 'alien'\")" in printed
    assert "'int3' is not a dtype of a KV cache" in printed
    assert printed.endswith("planning: agree 1, improved 0, differ 2, skipped 0\n")


@st.composite
def recorded_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Any entry of `specs` that the schema allows."""
    kind = draw(
        st.sampled_from(["full", "sliding_window", "chunked_local", "mla", "mamba", "sink_full", "rswa", "cross"])
    )
    spec: dict[str, Any] = {"kind": kind, "block_size": draw(st.sampled_from([16, 16, 16, 32, 64]))}
    if kind == "mamba":
        spec |= {"shapes": [[draw(st.integers(1, 2000))]], "dtypes": ["float32"]}
        return spec | draw(st.sampled_from([{}, {"cache_mode": "align"}, {"num_speculative_blocks": 2}]))
    spec |= {
        "num_kv_heads": 1 if kind == "mla" else draw(st.sampled_from([1, 2, 4])),
        "head_size": draw(st.sampled_from([64, 128, 192])),
        "dtype": draw(st.sampled_from(["bfloat16", "bfloat16", "float8_e4m3"])),
    }
    spec |= draw(st.sampled_from([{}, {}, {"state_content_bytes": 132}, {"quant": "int4_per_token_head"}]))
    if kind in ("sliding_window", "rswa") or (kind == "full" and draw(st.booleans())):
        spec["window"] = draw(st.integers(1, 500))
    if kind == "chunked_local":
        spec["chunk"] = draw(st.integers(1, 500))
    if kind == "sink_full":
        spec["sink_len"] = 16
    return spec


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Any input that the schema allows, with budgets around what one request needs."""
    specs = draw(st.lists(recorded_specs(), min_size=1, max_size=4))
    layers = [[f"L{i}", index] for i, index in enumerate(draw(st.lists(st.integers(0, len(specs) - 1), max_size=14)))]
    borders = [0, *sorted(draw(st.lists(st.integers(0, len(layers)), max_size=2))), len(layers)]
    stages = [layers[start:stop] for start, stop in pairwise(borders)]
    tp = draw(st.sampled_from([1, 1, 2]))
    case: dict[str, Any] = {
        "id": "any",
        "specs": specs,
        "stages": stages,
        "tp": tp,
        "available": [draw(st.integers(0, 2**24)) for _ in range(len(stages) * tp)],
        "max_model_len": draw(st.integers(1, 3000)),
        "max_in_flight_tokens": draw(st.integers(1, 600)),
        "max_encoder_tokens": 100,
    }
    options = st.sampled_from(
        [
            {"auto_fit": True},
            {"hybrid_off": True},
            {"num_blocks_override": 40},
            {"prefix_caching": False},
            {"dcp": 2},
            {"layout": "LHBNC"},
            {"layout": "HND"},
        ]
    )
    for chosen in draw(st.lists(options, max_size=2)):
        case |= chosen
    return case


@pytest.mark.slow
@given(cases())
def test_no_input_of_the_schema_crashes_either_mode(case: dict[str, Any]) -> None:
    """A case whose answer is recorded as our own agrees; without reference mode it has a plan or a named refusal."""
    ours = answer(case)
    if ours.get("error") != "BlocksOverrideError":
        recorded = {key: value for key, value in ours.items() if key != "message"}
        assert judge(case | {"out": recorded}) == ("agree", [])
    try:
        plan = plan_case(case, reference=False)
    except PlanError as error:
        assert type(error) in (*ERROR_KINDS, BlocksOverrideError)
        return
    # A given number of blocks is no number of bytes, and the reference reserves too little for odd attention chunks.
    comparable = "num_blocks_override" not in case and all(spec["kind"] != "chunked_local" for spec in case["specs"])
    if comparable and ours.get("num_blocks", 1) > 1:
        theirs, their_request = ours["num_blocks"] - 1, sum(ours["blocks_per_request"])
        usable, request = plan.figures.num_blocks - 1, sum(plan.figures.blocks_per_request)
        assert plan.figures.max_model_len > ours["max_model_len"] or usable * their_request >= theirs * request
