"""The oracle's planning cases in Octavo's own terms: specs, ranks, options (schema: tests/data/oracle/README.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    RetainedWindowSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

Case = Mapping[str, Any]

DTYPES = {"float8_e4m3": "float8_e4m3fn", "half": "float16", "float": "float32"}
"""Names of dtypes in the oracle that Octavo spells otherwise."""

SCALE_BYTES_PER_TOKEN_AND_HEAD = 8
"""Two float32 scales, of K and of V, in the formats that scale every token and head."""


def layer_spec(case: Case, recorded: Mapping[str, Any]) -> LayerSpec:
    """One entry of a case's `specs`. Raises `KeyError` or `ValueError` where the schema is not kept."""
    kind = recorded["kind"]
    common: dict[str, Any] = {
        "block_size": recorded["block_size"],
        "page_size_padded": recorded.get("page_size_padded"),
    }
    if kind == "mamba":
        return MambaSpec(
            **common,
            shapes=tuple(tuple(shape) for shape in recorded["shapes"]),
            dtypes=tuple(_dtype(dtype) for dtype in recorded["dtypes"]),
            cache_mode=recorded.get("cache_mode") or "none",
            num_speculative_blocks=recorded.get("num_speculative_blocks", 0),
        )
    common["quantization"] = recorded.get("quant") or recorded.get("cache_dtype_str") or ""
    if kind == "mla":
        content = recorded.get("state_content_bytes")
        heads = recorded.get("num_kv_heads", 1)
        return MLASpec(
            **common,
            latent_size=heads * recorded["head_size"],
            dtype=_dtype(recorded["dtype"]),
            packed_token_bytes=None if content is None else heads * content,
        )
    value_size = recorded.get("head_size_v")
    common |= {
        "num_kv_heads": recorded["num_kv_heads"],
        "head_size": recorded["head_size"],
        "head_size_v": None if value_size == recorded["head_size"] else value_size,
        "dtype": _dtype(recorded["dtype"]),
        "packed_head_bytes": recorded.get("state_content_bytes"),
    } | _quantised(recorded)
    return _attention_spec(case, kind, recorded, common)


def _attention_spec(case: Case, kind: str, recorded: Mapping[str, Any], common: dict[str, Any]) -> LayerSpec:
    if kind == "full":
        return FullAttentionSpec(**common, compute_window=recorded.get("window"), compute_chunk=recorded.get("chunk"))
    if kind == "sliding_window":
        return SlidingWindowSpec(**common, window=recorded["window"])
    if kind == "chunked_local":
        return ChunkedLocalSpec(**common, chunk=recorded["chunk"])
    if kind == "sink_full":
        return SinkFullAttentionSpec(**common, sink_len=recorded["sink_len"])
    if kind == "rswa":
        return RetainedWindowSpec(**common, window=recorded["window"])
    if kind == "cross":
        return CrossAttentionSpec(**common, max_encoder_tokens=case["max_encoder_tokens"])
    raise ValueError(f"unknown kind of layer {kind!r}")


def _quantised(recorded: Mapping[str, Any]) -> dict[str, Any]:
    quant = recorded.get("quant") or ""
    if not quant.endswith("_per_token_head") or recorded.get("state_content_bytes") is not None:
        return {}
    elements = recorded["head_size"] + recorded.get("head_size_v", recorded["head_size"])
    data = elements // 2 if quant.startswith("int4") else elements
    return {"packed_head_bytes": data + SCALE_BYTES_PER_TOKEN_AND_HEAD}


def _dtype(name: str) -> str:
    bare = name.removeprefix("torch.")
    return DTYPES.get(bare, bare)


def case_specs(case: Case) -> list[LayerSpec]:
    """The case's specs, in its order."""
    return [layer_spec(case, recorded) for recorded in case["specs"]]


def case_ranks(case: Case) -> tuple[list[dict[str, LayerSpec]], list[int]]:
    """Specs and bytes by rank, stage-major: the ranks of one stage hold the same layers."""
    specs = case_specs(case)
    ranks = [
        {name: specs[index] for name, index in stage} for stage in case["stages"] for _ in range(case.get("tp", 1))
    ]
    available = case["available"]
    return ranks, list(available) if isinstance(available, Sequence) else [available] * len(ranks)


def case_options(case: Case, *, reference: bool) -> PlanOptions:
    """The case's options. Its tokens in flight are taken as one step's."""
    return PlanOptions(
        max_model_len=case["max_model_len"],
        auto_fit=bool(case.get("auto_fit")),
        max_num_batched_tokens=case["max_in_flight_tokens"],
        num_blocks_override=case.get("num_blocks_override"),
        enable_prefix_caching=case.get("prefix_caching", True),
        hybrid=not case.get("hybrid_off"),
        context_parallel_size=case.get("dcp", 1),
        layout=case.get("layout", "LBNHC") if reference else "LBNHC",
        reference=reference,
    )


def shared_by_rank(case: Case, ranks: Sequence[Mapping[str, LayerSpec]]) -> list[dict[str, str]]:
    """The sharing layers of each rank: those whose target lies there."""
    shared = case.get("shared") or {}
    return [{name: target for name, target in shared.items() if target in specs} for specs in ranks]


def plan_case(case: Case, *, reference: bool) -> KVCachePlan:
    """The case's plan, in reference mode or with Octavo's own choices. Raises what `plan_kv_cache` raises."""
    ranks, available = case_ranks(case)
    return plan_kv_cache(ranks, available, case_options(case, reference=reference), shared_by_rank(case, ranks))


def is_block_outermost(case: Case) -> bool:
    """Whether the case's memory layout puts blocks outermost, which Octavo does not plan."""
    return str(case.get("layout", "LBNHC")).startswith("B")
