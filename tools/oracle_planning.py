"""Compare plans in reference mode with recorded ones of the reference engine.

Every case either agrees in every recorded number, or is skipped (block-outermost layouts, which Octavo does not plan),
or falls under one of the rules in `RULES`, where the reference crashes or accepts what fails later; then Octavo must
do what the rule says (improved). Anything else differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from octavo.errors import (
    AutoFitError,
    BlocksOverrideError,
    CacheTooSmallError,
    LayoutError,
    NoCacheMemoryError,
    OctavoError,
    PlanError,
)
from octavo.kv.planner import KVCachePlan
from octavo.kv.specs import ChunkedLocalSpec, FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from tools.oracle_cases import Case, case_ranks, case_specs, is_block_outermost, plan_case

ERROR_KINDS: dict[type[PlanError], str] = {
    NoCacheMemoryError: "no_memory",
    CacheTooSmallError: "too_small",
    AutoFitError: "auto_fit_failed",
    LayoutError: "layout",
}
MAX_SHOWN = 12
"""Differences of one case that are printed."""


def run_planning(path: str | Path) -> int:
    """Compare every case of `path`, print the differences and a closing line. Returns how many cases differ."""
    counts = {"agree": 0, "improved": 0, "differ": 0, "skipped": 0}
    for case in json.loads(Path(path).read_text())["items"]:
        try:
            verdict, differences = judge(case)
        except (KeyError, TypeError, ValueError) as error:
            verdict, differences = "differ", [f"the case does not keep the schema: {error!r}"]
        counts[verdict] += 1
        for line in differences[:MAX_SHOWN]:
            print(f"{case['id']}: {line}")
        if len(differences) > MAX_SHOWN:
            print(f"{case['id']}: and {len(differences) - MAX_SHOWN} more")
    print("planning: " + ", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    return counts["differ"]


def judge(case: Case) -> tuple[str, list[str]]:
    """The verdict on one case (agree, improved, differ, skipped), and what to print about it."""
    if is_block_outermost(case):
        return "skipped", []
    differences = compare(case["out"], answer(case))
    if not differences:
        return "agree", []
    for rule in RULES:
        if rule.applies(case):
            failures = list(rule.failures(case))
            return ("differ", [f"{rule.name}: {failure}" for failure in failures]) if failures else ("improved", [])
    return "differ", differences


def answer(case: Case) -> dict[str, Any]:
    """What Octavo answers to a case in reference mode, in the form in which answers are recorded."""
    out: dict[str, Any] = {}
    try:
        out["page_bytes"] = [spec.page_bytes for spec in case_specs(case)]
        return out | recorded_form(case, plan_case(case, reference=True))
    except OctavoError as error:
        kind = ERROR_KINDS.get(type(error), type(error).__name__) if isinstance(error, PlanError) else "refused"
        out |= {"error": type(error).__name__, "error_kind": kind, "message": str(error)}
        length = error.numbers.get("estimated_max_model_len")
        return out | ({"error_estimated_max_len": length} if length and kind == "too_small" else {})


def recorded_form(case: Case, plan: KVCachePlan) -> dict[str, Any]:
    """A plan as the oracle records plans."""
    figures = plan.figures
    tp = case.get("tp", 1)
    stages = []
    for config, rank in zip(plan.configs[::tp], figures.ranks[::tp], strict=True):
        stage: dict[str, Any] = {
            "pool_bytes": rank.pool_bytes,
            "tensors": [[tensor.size_bytes, list(tensor.shared_by)] for tensor in config.tensors],
        }
        if len(case["stages"]) > 1:
            stage["groups"] = [list(group.layer_names) for group in config.groups]
        stages.append(stage)
    return {
        "one_request_bytes": [rank.one_request_bytes for rank in figures.ranks[::tp]],
        "num_blocks": figures.num_blocks,
        "groups": [_group_form(group) for group in plan.groups],
        "stages": stages,
        "max_model_len": figures.max_model_len,
        "max_concurrency": figures.max_concurrency,
        "capacity_tokens": figures.capacity_tokens,
        "blocks_per_request": list(figures.blocks_per_request),
        "scheduler_block_size": figures.scheduler_block_size,
        "hash_block_size": figures.hash_block_size,
    }


def _group_form(group: KVCacheGroupSpec) -> dict[str, Any]:
    spec = group.spec
    form: dict[str, Any] = {"kind": spec.kind, "layers": list(group.layer_names), "block_size": spec.block_size}
    if group.layer_specs is None:
        form["page_bytes"] = spec.page_bytes
    else:
        form |= {"page_bytes_by_layer": [layer.page_bytes for layer in group.layer_specs], "mixed": True}
    window = chunk = None
    if isinstance(spec, FullAttentionSpec):
        window, chunk = spec.compute_window, spec.compute_chunk
    elif isinstance(spec, SlidingWindowSpec):
        window = spec.window
    elif isinstance(spec, ChunkedLocalSpec):
        chunk = spec.chunk
    return form | ({"window": window} if window else {}) | ({"chunk": chunk} if chunk else {})


def compare(recorded: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Every recorded number that Octavo answers otherwise. A refusal must be of the same kind, with the same length.

    Kinds beyond the four that the schema names are texts of the reference; there it counts that Octavo refuses the
    combination of layers too.
    """
    differences = []
    if "error" in recorded or "error" in ours:
        theirs = recorded.get("error_kind")
        if theirs is not None and theirs not in ERROR_KINDS.values():
            theirs = "layout"
        if theirs != ours.get("error_kind"):
            what = recorded.get("error_kind") or f"a plan of {recorded.get('num_blocks')} blocks"
            says = ours.get("message") or f"a plan of {ours.get('num_blocks')} blocks"
            differences.append(f"recorded is {what}, Octavo has {says}")
        keys = ["page_bytes", "error_estimated_max_len"]
    else:
        keys = [key for key in recorded if key != "packed"]
    for key in keys:
        if recorded.get(key) != ours.get(key):
            differences += _differences(key, recorded.get(key), ours.get(key))
    return differences


def _differences(where: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for i, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from _differences(f"{where}[{i}]", *pair)
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs | ours:
            yield from _differences(f"{where}.{key}", theirs.get(key), ours.get(key))
    elif theirs != ours:
        yield f"{where}: recorded is {_short(theirs)}, Octavo has {_short(ours)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


class Rule(NamedTuple):
    """Where the reference is wrong, and what Octavo does instead."""

    name: str
    applies: Callable[[Case], bool]
    """Decides from the case's input and the kind of the recorded answer, never from its id."""
    failures: Callable[[Case], Iterator[str]]
    """What Octavo does otherwise than the rule says; nothing where it holds."""


def _crashed(case: Case) -> bool:
    return case["out"].get("error") not in (None, "ValueError", "NotImplementedError")


def _has_empty_stage(case: Case) -> bool:
    return _crashed(case) and not all(case["stages"])


def _empty_stage_failures(case: Case) -> Iterator[str]:
    """A stage without cached layers costs and limits nothing: the plan is that of the other stages alone."""
    held = [i for i, stage in enumerate(case["stages"]) if stage]
    ours = answer(case)
    if not held:
        if ours.get("num_blocks") != 1 or ours.get("groups") != []:
            yield f"a model that caches nothing needs the null block alone, Octavo has {_short(ours)}"
        return
    tp = case.get("tp", 1)
    _, available = case_ranks(case)
    rest = dict(case) | {
        "stages": [case["stages"][i] for i in held],
        "available": [available[i * tp + rank] for i in held for rank in range(tp)],
    }
    expected = answer(rest)
    if "error" in expected:
        yield from compare(expected, ours)
        return
    if "error" in ours:
        yield f"the other stages alone have a plan, Octavo has {ours['message']}"
        return
    for i, stage in enumerate(case["stages"]):
        if not stage and (ours["stages"][i]["tensors"] or ours["stages"][i]["pool_bytes"]):
            yield f"stage {i} caches nothing, but is given {ours['stages'][i]['pool_bytes']} bytes"
    for key in set(expected) - {"stages", "one_request_bytes"}:
        yield from _differences(key, expected[key], ours[key])


def _is_override_above_memory(case: Case) -> bool:
    override, plan = case.get("num_blocks_override"), case["out"]
    if override is None or "error" in plan:
        return False
    ranks, available = case_ranks(case)
    tp = len(ranks) // len(plan["stages"])
    return any(plan["stages"][rank // tp]["pool_bytes"] > bytes_ for rank, bytes_ in enumerate(available))


def _override_failures(case: Case) -> Iterator[str]:
    """More blocks than the budget holds are refused, with the budget that holds them; given that, they are planned."""
    try:
        plan_case(case, reference=True)
        yield "the override is above the budget, but Octavo accepts it"
    except BlocksOverrideError as error:
        enough = dict(case) | {"available": error.numbers["smallest_budget_bytes"]}
        yield from compare(case["out"], answer(enough))
    except PlanError as error:
        yield f"the override is above the budget, but Octavo says: {error}"


def _has_two_windows(case: Case) -> bool:
    kinds = [recorded["kind"] for recorded in case["specs"]]
    notes = {
        (recorded.get("window"), recorded.get("chunk"))
        for recorded in case["specs"]
        if recorded["kind"] == "full"
        or (case.get("hybrid_off") and recorded["kind"] in ("sliding_window", "chunked_local"))
    } - {(None, None)}
    kind = case["out"].get("error_kind")
    return "full" in kinds and len(notes) > 1 and kind is not None and kind not in ERROR_KINDS.values()


def _two_windows_failures(case: Case) -> Iterator[str]:
    """Full layers that compute with different windows share one group, as they keep the same tokens."""
    ours = answer(case)
    if ours.get("error_kind") == "layout":
        yield f"layers that keep every token can share a group, but Octavo says: {ours['message']}"


def _has_conflict(case: Case) -> bool:
    specs: dict[str, int] = {}
    layers = [layer for stage in case["stages"] for layer in stage]
    return _crashed(case) and any(
        case["specs"][specs.setdefault(name, index)] != case["specs"][index] for name, index in layers
    )


def _conflict_failures(case: Case) -> Iterator[str]:
    """A layer that two ranks describe differently is refused by name."""
    ours = answer(case)
    if ours.get("error_kind") != "layout":
        yield f"ranks disagree about a layer, but Octavo has {_short(ours)}"


RULES = (
    Rule("a stage without cached layers", _has_empty_stage, _empty_stage_failures),
    Rule("an override above the budget", _is_override_above_memory, _override_failures),
    Rule("full layers of different windows", _has_two_windows, _two_windows_failures),
    Rule("a layer that ranks disagree about", _has_conflict, _conflict_failures),
)
