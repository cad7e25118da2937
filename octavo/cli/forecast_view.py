"""A forecast for people: the budget, the plan, what one request costs, what all of it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from octavo.cli.plan_words import attention_text, layer_numbers, page_text
from octavo.cli.text_table import table
from octavo.config import format_bytes
from octavo.planning.document import all_lengths, length_figures, min_reusable_prefix
from octavo.planning.forecast import Forecast
from octavo.planning.machine import RUNTIME_FORMULA
from octavo.planning.remedies import Remedy, longest_length, memory_needed


def forecast_text(asked: Forecast, remedies: Sequence[Remedy] = ()) -> str:
    """The whole answer, in lines."""
    parts = [_headline(asked), _budget(asked)]
    if not asked.fits:
        parts.append(_refusal(asked, remedies))
    parts += [_plan(asked), _request(asked)]
    if asked.fits:
        parts.append(_holds(asked))
    parts += [_reference(asked), "\n".join(f"note: {note}" for note in asked.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(asked: Forecast) -> str:
    model = asked.model
    kinds = [
        attention_text(spec) for specs in asked.specs_by_rank[:: asked.tensor_parallel_size] for spec in specs.values()
    ]
    told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    shared = sum(len(layers) for layers in asked.shared_by_rank[:: asked.tensor_parallel_size])
    more = f", {shared} that read another layer's cache" if shared else ""
    return (
        f"{model.name} ({model.architecture}): {model.num_layers} layers, cached: {told or 'none'}{more}; "
        f"cache in {asked.cache_bytes}"
    )


def _budget(asked: Forecast) -> str:
    ranks = list(zip(range(len(asked.budgets)), asked.budgets, strict=True))
    if asked.weights is None:
        sizes = [format_bytes(budget.kv_bytes) for budget in asked.budgets]
        where = f" on each of {len(sizes)} ranks" if len(sizes) > 1 else ""
        told = (
            ", ".join(f"rank {i}: {size}" for i, size in enumerate(sizes)) if len(set(sizes)) > 1 else sizes[0] + where
        )
        return f"Budget of the KV cache: {told}" + (
            "" if asked.is_budget_given else ", the least that holds one request"
        )
    rows = [["rank", "memory", "x share", "- weights", "- runtime (estimate)", "= KV cache"]]
    for (_, budget), same in groupby(ranks, key=lambda item: (0, item[1])):
        numbers = [index for index, _ in same]
        rows.append(
            [
                _span(numbers),
                format_bytes(budget.total_bytes or 0),
                format_bytes(budget.usable_bytes or 0),
                format_bytes(budget.weight_bytes or 0),
                format_bytes(budget.runtime_bytes or 0),
                format_bytes(budget.kv_bytes) if not budget.missing_bytes else f"-{format_bytes(budget.missing_bytes)}",
            ]
        )
    machine, weights = asked.inquiry.machine, asked.weights
    lines = [f"memory: {machine.device.name}, {machine.device.source}"] if machine.device else []
    lines.append(f"share: {machine.memory_utilization:g} of the memory (--memory-utilization)")
    lines.append(f"weights: {format_bytes(weights.total_bytes)} together, {weights.source}")
    if machine.runtime_bytes is None:
        lines.append(f"runtime: {RUNTIME_FORMULA}")
    return "\n  ".join([f"Budget\n{table(rows)}", *lines])


def _refusal(asked: Forecast, remedies: Sequence[Remedy]) -> str:
    numbers, longest = asked.refusal.numbers, longest_length(asked)
    there, least = format_bytes(numbers["available_bytes"]), numbers["smallest_budget_bytes"]
    rows = [
        [
            "needed",
            format_bytes(numbers["needed_bytes"]),
            f"one request of {asked.plan.figures.max_model_len:,} tokens",
        ],
        [
            "available",
            format_bytes(numbers["usable_bytes"]),
            f"of {there}, less the null block and what fills no block",
        ],
        ["longest length that fits", f"{longest:,}" if longest else "none", "tokens" if longest else ""],
        ["smallest cache", format_bytes(least), f"per rank: --kv-memory {least}"],
    ]
    if asked.weights is not None:
        memory = memory_needed(asked)
        rows.append(["smallest device", format_bytes(memory), f"per rank: --memory {memory}"])
    told = f"DOES NOT FIT\n{table(rows)}"
    missing = max(budget.missing_bytes for budget in asked.budgets)
    if missing:
        told += f"\n  Weights and runtime alone take {format_bytes(missing)} more than the share of a device."
    if remedies:
        lines = [f"  {number}. {remedy.flags}: {remedy.effect}" for number, remedy in enumerate(remedies, 1)]
        told += "\n\nTry\n" + "\n".join(lines)
    return told


def _plan(asked: Forecast) -> str:
    config, figures = asked.plan.configs[0], asked.plan.figures
    rank = figures.ranks[asked.heaviest_rank]
    sizes = sorted({tensor.size_bytes for tensor in config.tensors})
    pool = " and ".join(format_bytes(size) for size in sizes)
    rows = [
        ["group", "layers", "attention", "page", "a: fixed", "b: per token", f"reserved at {figures.max_model_len:,}"]
    ]
    keyed = [
        ((group.spec, len(group.layer_names), costs), index, group)
        for index, (group, costs) in enumerate(zip(asked.plan.groups, rank.groups, strict=True))
    ]
    for (_, _, costs), same in groupby(keyed, key=lambda item: item[0]):
        alike = list(same)
        group, count = alike[0][2], len(alike)
        layers = layer_numbers(group.layer_names) if count == 1 else f"each {len(group.layer_names)}"
        reserved = f"{figures.blocks_per_request[alike[0][1]]:,} blocks = {format_bytes(count * costs.reserved_bytes)}"
        rows.append(
            [
                _span([index for _, index, _ in alike]),
                layers,
                attention_text(group.spec),
                page_text(group),
                format_bytes(count * costs.fixed_bytes),
                format_bytes(count * costs.bytes_per_token),
                reserved if count == 1 else f"{count} x {reserved}",
            ]
        )
    blocks = " and ".join(map(str, sorted({group.spec.block_size for group in asked.plan.groups}))) or "0"
    shape = (
        f"Plan: {figures.num_blocks:,} blocks of {blocks} tokens, {format_bytes(rank.bytes_per_block)} each, one of "
        f"them the null block; {_count(len(config.tensors), 'tensor')} of {pool}"
    )
    return f"{shape}\n{table(rows)}" if asked.plan.groups else "Plan: nothing is cached."


def _request(asked: Forecast) -> str:
    figures = asked.plan.figures
    rank = figures.ranks[asked.heaviest_rank]
    if not rank.one_request_bytes:
        return ""
    over = 100 * (rank.one_request_bytes / rank.ideal_bytes - 1) if rank.ideal_bytes else 0.0
    where = f", on rank {asked.heaviest_rank}" if len(figures.ranks) > asked.tensor_parallel_size else ""
    rows = [
        ["a + b * L", f"{rank.fixed_bytes:,} + {rank.bytes_per_token:,} * L", "bytes, from the largest window on"],
        ["ideal", format_bytes(rank.ideal_bytes), "what its layers still read, no rounding"],
        ["held", format_bytes(rank.held_bytes), "blocks in its tables while it generates"],
        ["reserved", format_bytes(rank.one_request_bytes), f"blocks it may need at once, {over:+.2f} % over ideal"],
        ["padding", format_bytes(rank.padding_bytes), "of that cannot be filled"],
    ]  # fmt: skip
    prefix = min_reusable_prefix(asked)
    reuse = f"{prefix:,} tokens, and multiples of it" if prefix else "none"
    rows.append(["shortest reusable prefix", reuse, ""])
    return f"One request of {figures.max_model_len:,} tokens{where}\n{table(rows)}"


def _holds(asked: Forecast) -> str:
    figures = asked.plan.figures
    rows = [["length", "requests at once", "tokens", "one costs"]]
    for length in all_lengths(asked):
        found = length_figures(asked, length)
        rows.append(
            [
                f"{length:,}",
                f"{found['max_concurrency']:.2f}",
                f"{found['capacity_tokens']:,}",
                format_bytes(found["reserved_bytes"]),
            ]
        )
    return f"Holds {figures.capacity_tokens:,} tokens\n{table(rows)}"


def _reference(asked: Forecast) -> str:
    answer, own = asked.reference, asked.plan.figures
    head = f"The reference engine, with {answer.in_flight_tokens:,} tokens in flight and the null block as usable"
    if answer.plan is None:
        return f"{head}, has no plan for this:\n  {answer.refusal}"
    figures = answer.plan.figures
    cost = format_bytes(max(rank.one_request_bytes for rank in figures.ranks))
    if answer.refusal:
        return f"{head}, refuses this: one request takes {cost}."
    widest = max((len(group.layer_names) for group in answer.plan.groups), default=0)
    padding = format_bytes(max(rank.padding_bytes for rank in figures.ranks))
    lines = [
        head,
        f"  {figures.num_blocks:,} blocks in {_count(len(answer.plan.groups), 'group')} of up to {widest} layers: "
        f"{figures.capacity_tokens:,} tokens, {figures.max_concurrency:.2f} requests at once",
        f"  one request takes {cost}, {padding} of it padding",
    ]
    if asked.fits and figures.max_model_len == own.max_model_len and figures.capacity_tokens:
        comparable = figures.capacity_tokens * (figures.num_blocks - 1) / figures.num_blocks
        gain = 100 * (own.capacity_tokens / comparable - 1)
        lines.append(f"  this plan holds {gain:+.1f} % beside it, the null block left out on both sides")
    return "\n".join(lines)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number != 1 else ''}"


def _span(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
