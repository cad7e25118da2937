"""`octavo plan --check`: the plan beside what engines really allocated, started here or running elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo.cli.text_table import table
from octavo.config import format_bytes
from octavo.errors import ConfigError
from octavo.planning.cache_dtype import RUNNABLE
from octavo.planning.forecast import Forecast


class Found(NamedTuple):
    """The cache of one rank of one engine, as its live tensors tell."""

    engine: int
    rank: int
    num_blocks: int
    num_views: int
    num_storages: int
    storage_bytes: int
    resident_bytes: int


class Started(NamedTuple):
    """What is known of an engine that was started for the check alone."""

    weight_bytes: int
    """As the loaded model has them."""
    resident_before: int
    resident_written: int
    """Of all ranks, when every byte of the caches had been written."""


class Check(NamedTuple):
    """Planned and found bytes of the caches."""

    planned_blocks: int
    planned_by_rank: tuple[int, ...]
    planned_weight_bytes: int | None
    """As the budget counts them; None where the cache's bytes were given."""
    found: tuple[Found, ...]
    started: Started | None
    """None for a running server."""

    @property
    def planned_bytes(self) -> int:
        """Of every rank of every engine that was looked at."""
        return sum(self.planned_by_rank[rank.rank] for rank in self.found)

    @property
    def found_bytes(self) -> int:
        return sum(rank.storage_bytes for rank in self.found)

    @property
    def agrees(self) -> bool:
        """Whether every rank's cache is the planned one, to the byte."""
        ranks = {(rank.engine, rank.rank) for rank in self.found}
        whole = len(ranks) == len(self.found) and len(self.found) % len(self.planned_by_rank) == 0
        return (
            bool(self.found)
            and whole
            and all(
                rank.storage_bytes == self.planned_by_rank[rank.rank] and rank.num_blocks == self.planned_blocks
                for rank in self.found
            )
        )


def check(asked: Forecast, model: str, *, has_weights: bool) -> Check:
    """Start the engine with the settings and the bytes of the plan, and look at its tensors.

    `has_weights` is False for a config alone: then the engine makes up weights. Raises `ConfigError` for plans that
    cannot be started here, and what the engine raises.
    """
    _check_startable(asked)
    inquiry, figures = asked.inquiry, asked.plan.figures
    core, reports = (
        importlib.import_module("octavo.engine.core"),
        importlib.import_module("octavo.worker.memory_report"),
    )
    config = importlib.import_module("octavo.engine.engine_args").engine_config_from(
        {
            "model": model,
            "dtype": asked.compute_dtype,
            "kv_cache_dtype": asked.cache_dtype,
            "kv_memory": [budget.kv_bytes for budget in asked.budgets],
            "max_model_len": figures.max_model_len,
            "tensor_parallel_size": asked.tensor_parallel_size,
            "pipeline_parallel_size": len(asked.stages),
            "pipeline_layers": list(inquiry.pipeline_layers) or None,
            "load_format": "auto" if has_weights else "dummy",
            **{name: getattr(inquiry, name) for name in _SAME_NAMES},
        }
    )
    before = reports.resident_bytes()
    stages: list[Any] = []
    engine = core.EngineCore(config, on_stage=stages.append)
    try:
        found = tuple(found_of(report) for report in engine.report_memory())
        written = sum(engine.write_cache())
    finally:
        engine.shutdown()
    facts = {name: value for stage in stages for name, value in stage.facts.items()}
    return compare_with(asked, found, Started(int(facts.get("weight_bytes", 0)), before, written))


def _check_startable(asked: Forecast) -> None:
    if not asked.fits:
        raise ConfigError("--check starts what was planned, and this does not fit.", remedy="Plan what fits first.")
    if asked.cache_dtype not in RUNNABLE:
        raise ConfigError(
            f"--check starts what was planned, and {asked.cache_bytes} can be planned but not run yet.",
            remedy=f"Check it with --kv-cache-dtype {RUNNABLE[0]}.",
        )


def compare_with(asked: Forecast, found: Sequence[Found], started: Started | None) -> Check:
    """The plan beside these caches."""
    figures = asked.plan.figures
    strange = [rank.rank for rank in found if not 0 <= rank.rank < len(figures.ranks)]
    if strange:
        raise ConfigError(
            f"There is a rank {strange[0]}, and the plan has {len(figures.ranks)} ranks.",
            remedy="Plan for as many ranks as run.",
        )
    return Check(
        planned_blocks=figures.num_blocks,
        planned_by_rank=tuple(rank.pool_bytes for rank in figures.ranks),
        planned_weight_bytes=None if asked.weights is None else asked.weights.total_bytes,
        found=tuple(found),
        started=started,
    )


def found_of(report: Any) -> Found:
    """A rank's `MemoryReport`."""
    return Found(**{name: getattr(report, name) for name in Found._fields})


_SAME_NAMES = (
    "block_size", "num_blocks_override", "max_num_batched_tokens", "max_num_seqs", "max_chunk_tokens",
    "enable_prefix_caching",
)  # fmt: skip
"""Settings that are called alike here and there."""


def check_text(check: Check) -> str:
    """The comparison for people."""
    rows = [["", "planned", "found", "difference"]]
    has_engines = len({rank.engine for rank in check.found}) > 1
    for rank in check.found:
        of = f" of rank {rank.rank}" if len(check.found) > 1 else ""
        of += f" of engine {rank.engine}" if has_engines else ""
        rows.append(_row(f"cache{of}, bytes", check.planned_by_rank[rank.rank], rank.storage_bytes))
        rows.append(_row(f"blocks{of}", check.planned_blocks, rank.num_blocks))
    started = check.started
    if check.planned_weight_bytes is not None and started is not None:
        rows.append(_row("weights, bytes", check.planned_weight_bytes, started.weight_bytes))
    views, storages = (sum(getattr(rank, name) for rank in check.found) for name in ("num_views", "num_storages"))
    return (
        f"Check\n{table(rows)}\n  {views} tensors of layers look into {storages} storages.\n{_memory_text(check)}"
        f"  {'The plan is what was allocated.' if check.agrees else 'THE PLAN IS NOT WHAT WAS ALLOCATED.'}\n"
    )


def _row(name: str, planned: int, found: int) -> list[str]:
    return [name, f"{planned:,}", f"{found:,}", f"{found - planned:,}"]


def _memory_text(check: Check) -> str:
    resident, started = sum(rank.resident_bytes for rank in check.found), check.started
    if started is None:
        return f"  In memory are {format_bytes(resident)} of its processes.\n"
    if len(check.found) > 1:
        return (
            f"  The processes of the ranks take {format_bytes(resident)}, and {format_bytes(started.resident_written)} "
            "when every byte of\n  the cache was written.\n"
        )
    return (
        f"  The process grew by {format_bytes(resident - started.resident_before)} while it started: weights "
        f"{format_bytes(started.weight_bytes)}, libraries, buffers;\n"
        f"  and by {format_bytes(started.resident_written - resident)} when every byte of the cache was written.\n"
    )


def check_document(check: Check) -> dict[str, Any]:
    """The same for programs."""
    started = check.started
    return {
        "agrees": check.agrees,
        "planned_bytes": check.planned_bytes,
        "found_bytes": check.found_bytes,
        "difference_bytes": check.found_bytes - check.planned_bytes,
        "planned_blocks": check.planned_blocks,
        "found_blocks": min((rank.num_blocks for rank in check.found), default=0),
        "num_storages": sum(rank.num_storages for rank in check.found),
        "planned_weight_bytes": check.planned_weight_bytes,
        "found_weight_bytes": started and started.weight_bytes,
        "resident_bytes_before": started and started.resident_before,
        "resident_bytes_after": sum(rank.resident_bytes for rank in check.found),
        "resident_bytes_written": started and started.resident_written,
        "ranks": [rank._asdict() | {"planned_bytes": check.planned_by_rank[rank.rank]} for rank in check.found],
    }
