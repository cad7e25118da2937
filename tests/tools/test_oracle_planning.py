from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tools.oracle_planning import answer, compare, judge, run_planning

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
