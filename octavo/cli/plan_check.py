"""`octavo plan --check`: the plan beside what a started engine really allocated."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from octavo.cli.text_table import table
from octavo.config import format_bytes
from octavo.errors import ConfigError
from octavo.planning.forecast import Forecast


class Check(NamedTuple):
    """Planned and found bytes of the cache, and the process's memory around its start."""

    planned_bytes: int
    planned_blocks: int
    planned_weight_bytes: int | None
    """As the budget counts them; None where the cache's bytes were given."""
    weight_bytes: int
    """As the loaded model has them."""
    resident_before: int
    report: Any
    """The rank's `MemoryReport`."""

    @property
    def difference(self) -> int:
        """Found less planned bytes of the cache."""
        return int(self.report.storage_bytes) - self.planned_bytes

    @property
    def agrees(self) -> bool:
        return self.difference == 0 and self.planned_blocks == self.report.num_blocks


def check(asked: Forecast, model: str, *, has_weights: bool) -> Check:
    """Start the engine with the settings and the bytes of the plan, and look at its tensors.

    `has_weights` is False for a config alone: then the engine makes up weights. Raises `ConfigError` for plans that
    cannot be started here: those of several ranks, and those that do not fit; and what the engine raises.
    """
    if len(asked.budgets) != 1:
        raise ConfigError(
            f"--check starts one rank here, and the plan has {len(asked.budgets)}.", remedy="Check it with one rank."
        )
    if not asked.fits:
        raise ConfigError("--check starts what was planned, and this does not fit.", remedy="Plan what fits first.")
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
            "kv_memory": asked.budgets[0].kv_bytes,
            "max_model_len": figures.max_model_len,
            "load_format": "auto" if has_weights else "dummy",
            **{name: getattr(inquiry, name) for name in _SAME_NAMES},
        }
    )
    before = reports.resident_bytes()
    stages: list[Any] = []
    engine = core.EngineCore(config, on_stage=stages.append)
    try:
        (report,) = engine.report_memory()
    finally:
        engine.shutdown()
    facts = {name: value for stage in stages for name, value in stage.facts.items()}
    return Check(
        planned_bytes=figures.ranks[0].pool_bytes,
        planned_blocks=figures.num_blocks,
        planned_weight_bytes=None if asked.weights is None else asked.weights.total_bytes,
        weight_bytes=int(facts.get("weight_bytes", 0)),
        resident_before=before,
        report=report,
    )


_SAME_NAMES = (
    "block_size", "num_blocks_override", "max_num_batched_tokens", "max_num_seqs", "max_chunk_tokens",
    "enable_prefix_caching",
)  # fmt: skip
"""Settings that are called alike here and there."""


def check_text(found: Check) -> str:
    """The comparison for people."""
    report = found.report
    rows = [
        ["", "planned", "found", "difference"],
        ["cache, bytes", f"{found.planned_bytes:,}", f"{report.storage_bytes:,}", f"{found.difference:,}"],
        ["blocks", str(found.planned_blocks), str(report.num_blocks), str(report.num_blocks - found.planned_blocks)],
    ]
    if found.planned_weight_bytes is not None:
        more = found.weight_bytes - found.planned_weight_bytes
        rows.append(["weights, bytes", f"{found.planned_weight_bytes:,}", f"{found.weight_bytes:,}", f"{more:,}"])
    grown = report.resident_bytes - found.resident_before
    written = report.resident_bytes_written - report.resident_bytes
    return (
        f"Check\n{table(rows)}\n"
        f"  {report.num_views} tensors of layers look into {report.num_storages} storages.\n"
        f"  The process grew by {format_bytes(grown)} while it started: weights {format_bytes(found.weight_bytes)}, "
        f"libraries, buffers;\n  and by {format_bytes(written)} when every byte of the cache was written.\n"
        f"  {'The plan is what was allocated.' if found.agrees else 'THE PLAN IS NOT WHAT WAS ALLOCATED.'}\n"
    )


def check_document(found: Check) -> dict[str, Any]:
    """The same for programs."""
    return {
        "agrees": found.agrees,
        "planned_bytes": found.planned_bytes,
        "found_bytes": found.report.storage_bytes,
        "difference_bytes": found.difference,
        "planned_blocks": found.planned_blocks,
        "found_blocks": found.report.num_blocks,
        "num_storages": found.report.num_storages,
        "planned_weight_bytes": found.planned_weight_bytes,
        "found_weight_bytes": found.weight_bytes,
        "resident_bytes_before": found.resident_before,
        "resident_bytes_after": found.report.resident_bytes,
        "resident_bytes_written": found.report.resident_bytes_written,
    }
