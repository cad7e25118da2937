"""A plan for people: groups, tensors, blocks, and what they hold."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from octavo.cli.plan_words import attention_text, layer_numbers, page_text
from octavo.config import format_bytes
from octavo.kv.planner import KVCachePlan


def plan_view(plan: KVCachePlan, *, model_name: str, device: str) -> RenderableType:
    """The plan of rank 0 (all ranks have the same groups and blocks) as a headline, a table and what it holds.

    Print it with `soft_wrap=True`: its lines are whole.

    `device` is the name that the capacity line starts with, `CPU` or `GPU`.
    """
    config, figures = plan.configs[0], plan.figures
    rank = figures.ranks[0]
    ranks = f" on each of {len(plan.configs)} ranks" if len(plan.configs) > 1 else ""
    sizes = sorted({group.spec.block_size for group in config.groups})
    headline = Text.assemble(
        ("KV cache plan", "bold"),
        f" of {model_name}: {config.num_blocks:,} blocks of {' and '.join(map(str, sizes))} tokens, "
        f"{format_bytes(rank.bytes_per_block)} each: {format_bytes(rank.pool_bytes)}{ranks}",
    )
    lines: list[RenderableType] = [headline, Padding(_groups(plan), (0, 0, 0, 2)), Text(_tensors(plan))]
    if config.shared_layers:
        lines.append(Text(f"{len(config.shared_layers)} layers keep no cache of their own: they read another layer's."))
    lines.append(Text(capacity_line(plan, device=device)))
    return Group(*lines)


def capacity_line(plan: KVCachePlan, *, device: str) -> str:
    """What the cache holds, in the words that log scrapers look for."""
    figures = plan.figures
    return (
        f"{device} KV cache size: {figures.capacity_tokens:,} tokens, Maximum concurrency for "
        f"{figures.max_model_len:,} tokens per request: {figures.max_concurrency:.2f}x"
    )


def _groups(plan: KVCachePlan) -> Table:
    config, figures = plan.configs[0], plan.figures
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("group", "layers", "attention"):
        table.add_column(title, no_wrap=True)
    for title in ("page", "one request holds", "and reads"):
        table.add_column(title, justify="right", no_wrap=True)
    for index, group in enumerate(config.groups):
        held, costs = figures.blocks_per_request[index], figures.ranks[0].groups[index]
        table.add_row(
            str(index),
            f"{len(group.layer_names)}: {layer_numbers(group.layer_names)}",
            attention_text(group.spec),
            page_text(group),
            f"{held:,} blocks = {format_bytes(costs.reserved_bytes)}",
            format_bytes(costs.ideal_bytes),
        )
    return table


def _tensors(plan: KVCachePlan) -> str:
    config, usable = plan.configs[0], plan.figures.usable_blocks
    sizes = sorted({tensor.size_bytes for tensor in config.tensors})
    size = " and ".join(format_bytes(bytes_) for bytes_ in sizes)
    shared = max((len(tensor.shared_by) for tensor in config.tensors), default=0)
    tensors = f"{len(config.tensors)} tensor{'s' if len(config.tensors) != 1 else ''} of {size}"
    sharing = f", each shared by up to {shared} layers" if shared > 1 else ""
    return f"{tensors}{sharing}; {usable:,} blocks to hand out, 1 null block"
