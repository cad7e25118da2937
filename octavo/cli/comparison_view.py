"""A comparison and an explanation for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.cli.text_table import table
from octavo.config import format_bytes
from octavo.planning.comparison import Row
from octavo.planning.document import document
from octavo.planning.explanation import Step

HEAD = ("fits", "cache of a rank", "one request", "over ideal", "at once", "tokens", "longest", "reference")
"""Columns. `at once` and `reference` are requests of the length asked for, here and in the reference engine."""


def comparison_text(rows: Sequence[Row]) -> str:
    """A line for each row, in the order in which the values were given."""
    names = list(rows[0].values)
    head = [
        *names,
        "fits",
        "cache of a rank",
        "one request",
        "over ideal",
        "requests at once",
        "tokens",
        "longest",
        "reference",
    ]
    lines, told = [head], []
    for number, row in enumerate(rows, 1):
        values = [row.values[name] for name in names]
        if row.forecast is None:
            lines.append([*values, "refused", *[""] * (len(HEAD) - 1)])
            told.append(f"row {number}: {row.refusal}")
            continue
        figures, asked = row.forecast.plan.figures, row.forecast
        own = figures.ranks[asked.heaviest_rank]
        over = f"{100 * (own.one_request_bytes / own.ideal_bytes - 1):+.1f} %" if own.ideal_bytes else ""
        reference = asked.reference.plan
        lines.append(
            [
                *values,
                "yes" if asked.fits else "NO",
                format_bytes(min(budget.kv_bytes for budget in asked.budgets)),
                format_bytes(own.one_request_bytes),
                over,
                f"{figures.max_concurrency:.2f}",
                f"{figures.capacity_tokens:,}",
                f"{row.longest:,}" if row.longest else "none",
                f"{reference.figures.max_concurrency:.2f}" if reference is not None else "no plan",
            ]
        )
    return "\n".join([table(lines, indent=0), *told]) + "\n"


def comparison_document(rows: Sequence[Row]) -> dict[str, Any]:
    """The comparison for programs: the whole document of each plan."""
    return {
        "compare": list(rows[0].values),
        "rows": [
            {
                "values": row.values,
                "longest_max_model_len": row.longest,
                "refusal": row.refusal or None,
                "plan": None if row.forecast is None else document(row.forecast),
            }
            for row in rows
        ],
    }


def explanation_text(steps: Sequence[Step]) -> str:
    """Each number: what it is called, its formula, the same with its inputs, the value."""
    lines = []
    for step in steps:
        value = f"{step.value:,}" if isinstance(step.value, int) else f"{step.value:.4f}"
        lines += [f"{step.name}", f"    = {step.formula}", f"    = {step.expression}", f"    = {value}"]
    return "\n".join(lines) + "\n"
