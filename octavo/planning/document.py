"""A forecast as JSON: the form that programs read. Keys are added, never renamed; docs/plan.md has a whole example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.kv.figures import GroupFigures, RankFigures
from octavo.kv.planner import KVCachePlan
from octavo.kv.specs import KVCacheGroupSpec, KVCacheTensor, LayerSpec
from octavo.planning.forecast import Forecast
from octavo.planning.machine import RUNTIME_FORMULA
from octavo.planning.reference import ReferenceAnswer
from octavo.planning.remedies import Remedy, longest_length, memory_needed

VERSION = 1
"""Raised when a key changes its sense."""


def document(asked: Forecast, remedies: Sequence[Remedy] = ()) -> dict[str, Any]:
    """Everything about the forecast, in plain values; bytes are whole numbers."""
    figures, rank = asked.plan.figures, asked.heaviest_rank
    heaviest = figures.ranks[rank]
    return {
        "version": VERSION,
        "fits": asked.fits,
        "model": _model(asked),
        "settings": _settings(asked),
        "num_blocks": figures.num_blocks,
        "usable_blocks": figures.usable_blocks,
        "bytes_per_block": heaviest.bytes_per_block,
        "max_model_len": figures.max_model_len,
        "capacity_tokens": figures.capacity_tokens,
        "max_concurrency": figures.max_concurrency,
        "min_reusable_prefix_tokens": min_reusable_prefix(asked),
        "per_request": _costs(heaviest),
        "lengths": [length_figures(asked, length) for length in all_lengths(asked)],
        "groups": _groups(asked.plan, heaviest),
        "tensors": _tensors(asked.plan.configs[0].tensors),
        "ranks": [_rank(asked, index) for index in range(len(figures.ranks))],
        "weights": None
        if asked.weights is None
        else {"total_bytes": asked.weights.total_bytes, "source": asked.weights.source},
        "estimates": {"runtime_bytes": RUNTIME_FORMULA} if asked.weights is not None else {},
        "reference": reference_figures(asked.reference),
        "does_not_fit": None if asked.fits else _does_not_fit(asked, remedies),
        "notes": list(asked.notes),
    }


def all_lengths(asked: Forecast) -> list[int]:
    """The lengths to tell figures of: `max_model_len`, then those that the user named."""
    return list(dict.fromkeys((asked.plan.figures.max_model_len, *asked.inquiry.lengths)))


def length_figures(asked: Forecast, num_tokens: int) -> dict[str, Any]:
    """What a request of `num_tokens` costs on the heaviest rank, and how many fit at once."""
    rank = asked.heaviest_rank
    cost = asked.plan.figures.ranks[rank].bytes_per_block
    concurrency = asked.concurrency(num_tokens)
    return {
        "num_tokens": num_tokens,
        "ideal_bytes": sum(spec.ideal_bytes(num_tokens) for spec in asked.specs_by_rank[rank].values()),
        "reserved_bytes": asked.blocks_of(num_tokens) * cost,
        "max_concurrency": concurrency,
        "capacity_tokens": int(concurrency * num_tokens),
    }


def min_reusable_prefix(asked: Forecast) -> int | None:
    """The shortest beginning that a later request can find in the cache, in tokens; hits come in multiples of it.

    None where no prefix is ever reused: caching is off, or a layer keeps what cannot be shared.
    """
    groups = asked.plan.groups
    reusable = asked.options.enable_prefix_caching and all(group.spec.prefix_cacheable for group in groups)
    return asked.plan.figures.scheduler_block_size if groups and reusable else None


def reference_figures(answer: ReferenceAnswer) -> dict[str, Any]:
    """The reference engine's figures; null where it has no plan."""
    plan = answer.plan
    figures = plan.figures if plan is not None else None
    return {
        "fits": plan is not None and not answer.refusal,
        "num_blocks": figures and figures.num_blocks,
        "capacity_tokens": figures and figures.capacity_tokens,
        "max_concurrency": figures and figures.max_concurrency,
        "max_model_len": figures and figures.max_model_len,
        "in_flight_tokens": answer.in_flight_tokens,
        "one_request_bytes": figures and max(rank.one_request_bytes for rank in figures.ranks),
        "groups": [] if plan is None else _groups(plan, max(plan.figures.ranks, key=lambda rank: rank.ideal_bytes)),
        "refusal": answer.refusal or None,
    }


def _model(asked: Forecast) -> dict[str, Any]:
    model = asked.model
    return {
        "name": model.name,
        "architecture": model.architecture,
        "model_type": model.model_type,
        "num_layers": model.num_layers,
        "num_cached_layers": sum(len(group.layer_names) for group in asked.plan.groups),
        "max_position": model.max_position,
        "dtype": model.dtype,
    }


def _settings(asked: Forecast) -> dict[str, Any]:
    inquiry, machine = asked.inquiry, asked.inquiry.machine
    return {
        "compute_dtype": asked.compute_dtype,
        "kv_cache_dtype": asked.cache_bytes,
        "block_size": inquiry.block_size,
        "max_num_batched_tokens": inquiry.max_num_batched_tokens,
        "max_chunk_tokens": asked.plan.figures.max_chunk_tokens,
        "max_num_seqs": inquiry.max_num_seqs,
        "enable_prefix_caching": inquiry.enable_prefix_caching,
        "tensor_parallel_size": asked.tensor_parallel_size,
        "pipeline_parallel_size": inquiry.pipeline_parallel_size,
        "device": machine.device.name if machine.device else None,
        "memory_utilization": machine.memory_utilization if asked.weights is not None else None,
    }


def _costs(rank: RankFigures) -> dict[str, int]:
    return {
        "fixed_bytes": rank.fixed_bytes,
        "bytes_per_token": rank.bytes_per_token,
        "ideal_bytes": rank.ideal_bytes,
        "reserved_bytes": rank.one_request_bytes,
        "held_bytes": rank.held_bytes,
        "padding_bytes": rank.padding_bytes,
    }


def _groups(plan: KVCachePlan, rank: RankFigures) -> list[dict[str, Any]]:
    return [
        _group(group, costs, blocks)
        for group, costs, blocks in zip(plan.groups, rank.groups, plan.figures.blocks_per_request, strict=True)
    ]


def _group(group: KVCacheGroupSpec, costs: GroupFigures, blocks: int) -> dict[str, Any]:
    spec: LayerSpec = group.spec
    return {
        "kind": spec.kind,
        "window": getattr(spec, "window", None),
        "chunk": getattr(spec, "chunk", None),
        "layers": list(group.layer_names),
        "block_size": spec.block_size,
        "page_bytes": [layer.page_bytes for layer in group.layer_specs] if group.layer_specs else spec.page_bytes,
        "blocks_per_request": blocks,
        "fixed_bytes": costs.fixed_bytes,
        "bytes_per_token": costs.bytes_per_token,
        "ideal_bytes": costs.ideal_bytes,
        "reserved_bytes": costs.reserved_bytes,
        "held_bytes": costs.held_bytes,
        "padding_bytes": costs.padding_bytes,
    }


def _tensors(tensors: Sequence[KVCacheTensor]) -> list[dict[str, Any]]:
    return [{"size_bytes": tensor.size_bytes, "shared_by": list(tensor.shared_by)} for tensor in tensors]


def _rank(asked: Forecast, index: int) -> dict[str, Any]:
    figures, budget = asked.plan.figures.ranks[index], asked.budgets[index]
    stage = index // asked.tensor_parallel_size
    return {
        "rank": index,
        "stage": stage,
        "first_layer": asked.stages[stage].start,
        "num_layers": len(asked.stages[stage]),
        "total_bytes": budget.total_bytes,
        "usable_bytes": budget.usable_bytes,
        "weight_bytes": budget.weight_bytes,
        "runtime_bytes": budget.runtime_bytes,
        "kv_bytes": budget.kv_bytes,
        "missing_bytes": budget.missing_bytes,
        "pool_bytes": figures.pool_bytes,
        "unused_bytes": figures.unused_bytes,
        "bytes_per_block": figures.bytes_per_block,
        **_costs(figures),
        "tensors": _tensors(asked.plan.configs[index].tensors),
    }


def _does_not_fit(asked: Forecast, remedies: Sequence[Remedy]) -> dict[str, Any]:
    numbers = asked.refusal.numbers
    return {
        "message": str(asked.refusal),
        "rank": numbers["rank"],
        "needed_bytes": numbers["needed_bytes"],
        "available_bytes": numbers["available_bytes"],
        "usable_bytes": numbers["usable_bytes"],
        "longest_max_model_len": longest_length(asked),
        "smallest_kv_memory_bytes": numbers["smallest_budget_bytes"],
        "smallest_memory_bytes": memory_needed(asked) if asked.weights is not None else None,
        "remedies": [
            {
                "flags": remedy.flags,
                "effect": remedy.effect,
                "fits": remedy.fits,
                "max_model_len": remedy.max_model_len,
                "max_concurrency": remedy.max_concurrency,
            }
            for remedy in remedies
        ],
    }
