"""The cache as a picture: the pool to scale, and which layers share which tensor."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from octavo.config import format_bytes
from octavo.kv.planner import KVCachePlan
from octavo.kv.specs import KVCacheGroupSpec, LayerSpec
from octavo.planning.chart import FAINT, Box, text

COLOURS = ("#1b6ca8", "#d9822b", "#2e8b57", "#8e44ad", "#c0392b", "#566573")
FREE, PADDING = "#f1f1f1", "url(#padding)"
MAX_ROWS, MAX_COLUMNS = 12, 40
MAX_REQUESTS = 24
"""So many requests are drawn one by one; where more fit, the rest is one stretch."""

HATCHING = (
    '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" fill="white"/><path d="M0 6L6 0" stroke="#bbbbbb"/></pattern></defs>'
)


def kinds_of(groups: Sequence[KVCacheGroupSpec]) -> dict[LayerSpec, str]:
    """The colour of each kind of group, in the order in which they come."""
    kinds = list(dict.fromkeys(group.spec for group in groups))
    return {spec: COLOURS[index % len(COLOURS)] for index, spec in enumerate(kinds)}


def pool(box: Box, plan: KVCachePlan, names: Mapping[LayerSpec, str]) -> list[str]:
    """The pool to scale: tensors from top to bottom, blocks from left to right, and the requests that fill it."""
    figures, colours = plan.figures, kinds_of(plan.groups)
    per_request, tensors = sum(figures.blocks_per_request), plan.configs[0].tensors
    rows = min(len(tensors), MAX_ROWS)
    height = (box.height - 96) / max(rows, 1)
    scale = box.width / max(figures.num_blocks, 1)
    top = box.top + 30
    size, where = format_bytes(figures.ranks[0].pool_bytes), "rank 0" if len(figures.ranks) > 1 else "all of it"
    of_tensors = f"{len(tensors)} tensor{'s' if len(tensors) != 1 else ''}"
    title = f"The pool, to scale: {figures.num_blocks:,} blocks in {of_tensors}, {size} ({where})"
    parts = [text(box.left, box.top + 14, title, size=14, weight="bold")]
    stretches = [(0.0, 1.0, "#000000", "null block")]
    fitting = min(int(figures.usable_blocks // per_request) if per_request else 0, MAX_REQUESTS)
    start = 1.0
    for request in range(max(fitting, 1)):  # of one that does not fit, what the pool has room for
        for group, blocks in zip(plan.groups, figures.blocks_per_request, strict=True):
            room = min(blocks, figures.num_blocks - start)
            if room > 0:
                stretches.append((start, room, colours[group.spec], f"request {request + 1}: {names[group.spec]}"))
            start += blocks
    for first, wide, colour, told in _merged(stretches):
        x, width, name = box.left + first * scale, max(wide * scale, 0.75), f"<title>{html.escape(told)}</title>"
        parts.extend(
            f'<rect x="{x:.2f}" y="{top + row * height:.2f}" width="{width:.2f}" height="{height - 1.5:.2f}" '
            f'fill="{colour}">{name}</rect>'
            for row in range(rows)
        )
    bottom = top + rows * height
    if per_request:
        for request in range(fitting):
            left = box.left + (1 + request * per_request) * scale
            parts.append(_bracket(left, left + per_request * scale, bottom + 2))
        told = _told(figures.max_concurrency, figures.max_model_len, fitting)
        parts.append(text(box.left, bottom + 24, told, colour=FAINT))
    x = box.left
    for spec, colour in colours.items():
        count = sum(group.spec == spec for group in plan.groups)
        words = f"{names[spec]}: {count} group{'s' if count > 1 else ''}"
        parts.append(f'<rect x="{x}" y="{bottom + 36}" width="12" height="12" fill="{colour}"/>')
        parts.append(text(x + 18, bottom + 46, words))
        x += 40 + 7 * len(words)
    background = (
        f'<rect x="{box.left}" y="{top}" width="{box.width}" height="{rows * height - 1.5:.2f}" fill="{FREE}" '
        'stroke="#cccccc" stroke-width="0.5"><title>free blocks</title></rect>'
    )
    return [parts[0], background, *parts[1:]]


def _told(at_once: float, length: int, drawn: int) -> str:
    """How many requests fit, never more than are drawn."""
    share = math.floor(100 * at_once) / 100
    if not drawn:
        return f"Of one request of {length:,} tokens {share:.2f} would fit: drawn is that much of it."
    beyond = f"; {drawn} of them drawn" if at_once >= MAX_REQUESTS + 1 else ""
    return f"{share:.2f} requests of {length:,} tokens fit at once{beyond}. Grey is left over for more."


def sharing(box: Box, plan: KVCachePlan) -> list[str]:
    """Which layers share a tensor: a row for each tensor, a column for each group, the layer's number in the cell."""
    config, colours = plan.configs[0], kinds_of(plan.groups)
    groups = [group for group in config.groups if group.layer_names]
    rows, columns = min(len(config.tensors), MAX_ROWS), min(len(groups), MAX_COLUMNS)
    title = "Layers in one row share one tensor: block ids keep their groups apart"
    if len(groups) == 1:
        title = "One group of layers: each has a tensor of its own"
    parts = [text(box.left, box.top + 14, title, size=14, weight="bold")]
    if not rows or not columns:
        return parts
    left, top = box.left + 66, box.top + 44
    width, height = min((box.width - 66) / columns, 60.0), min((box.height - 76) / rows, 26.0)
    size = max(8, min(11, int(min(width / 1.8, height))))
    for column, group in enumerate(groups[:columns]):
        centre = left + (column + 0.5) * width - 0.75
        if width >= 14:
            parts.append(text(centre, top - 6, str(column), size=size, anchor="middle", colour=FAINT))
        for row in range(rows):
            name = group.layer_names[row] if row < len(group.layer_names) else ""
            x, y = left + column * width, top + row * height
            fill = colours[group.spec] if name else PADDING
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{width - 1.5:.2f}" height="{height - 1.5:.2f}" fill="{fill}">'
                f"<title>{html.escape(name or 'padding: this group is narrower')}</title></rect>"
            )
            if name and width >= 14:
                number = name.removeprefix("layers.").removesuffix(".state")
                y += height / 2 + size / 3
                parts.append(text(centre, y, number, size=size, anchor="middle", colour="white"))
    parts.append(text(left - 10, top - 6, "group", size=size, anchor="end", colour=FAINT))
    parts.extend(
        text(left - 10, top + (row + 0.7) * height, f"tensor {row}", size=size, anchor="end", colour=FAINT)
        for row in range(rows)
    )
    hidden = [
        f"{len(config.tensors) - rows} more tensors" if len(config.tensors) > rows else "",
        f"{len(groups) - columns} more groups" if len(groups) > columns else "",
        "hatched: padding, no layer there" if PADDING in "".join(parts) else "",
    ]
    note = "; ".join(filter(None, hidden))
    return [*parts, text(left, top + rows * height + 16, note, size=11, colour=FAINT)]


def _merged(stretches: Sequence[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """Neighbours of one colour and name as one stretch."""
    merged: list[tuple[float, float, str, str]] = []
    for start, blocks, colour, told in stretches:
        if merged and merged[-1][2:] == (colour, told):
            first, before, *_ = merged.pop()
            start, blocks = first, before + blocks
        merged.append((start, blocks, colour, told))
    return merged


def _bracket(left: float, right: float, top: float) -> str:
    return f'<path d="M{left:.1f} {top}v5H{right - 1:.1f}v-5" fill="none" stroke="{FAINT}"/>'
