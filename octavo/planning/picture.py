"""A forecast as a picture: the memory map above, capacity against length and against tokens in flight below."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.kv.planner import try_plan
from octavo.kv.specs import LayerSpec
from octavo.planning.chart import FAINT, Box, Line, chart, text
from octavo.planning.forecast import Forecast
from octavo.planning.memory_map import HATCHING, MAX_ROWS, pool, sharing
from octavo.planning.reference import ask_reference, state_rule

WIDE, NARROW = 1100, 660
"""Widths of a picture: with charts side by side, and one below the other."""
OURS, THEIRS = "#1b6ca8", "#c0392b"
MIN_IN_FLIGHT, MAX_IN_FLIGHT = 256, 32768
FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"
KINDS = (".svg", ".png", ".html")


def write_picture(asked: Forecast, path: Path, answer: str) -> None:
    """Draw into `path`, as its ending says; `answer`, the forecast in words, is written below the picture in HTML.

    Raises `ConfigError` for other endings, and for PNG where its library or any font is missing.
    """
    check_path(path)
    kind, drawn = path.suffix.lower(), draw(asked)
    if kind == ".png":
        path.write_bytes(_png(drawn))
    elif kind == ".html":
        path.write_text(_page(asked, drawn, answer), encoding="utf-8")
    else:
        path.write_text(drawn, encoding="utf-8")


def check_path(path: Path) -> None:
    """Raise `ConfigError` for a name that no picture can have, and for a folder that is not there."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"--plot is {path}.", remedy=f"Let its name end in {', '.join(KINDS)}.")
    if not path.parent.is_dir():
        raise ConfigError(
            f"--plot is {path}, and there is no folder {path.parent}.", remedy="Make it, or name another."
        )


def _page(asked: Forecast, wide: str, answer: str) -> str:
    """The HTML: of two pictures the one that fits the window, and the answer below."""
    title = html.escape(f"KV cache of {asked.model.name}")
    narrow = draw(asked, NARROW).replace('id="padding"', 'id="padding-narrow"').replace("#padding", "#padding-narrow")
    return (
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title>\n<style>.narrow{{display:none}}pre{{overflow-x:auto}}"
        f"@media(max-width:{WIDE + 40}px){{.wide{{display:none}}.narrow{{display:block}}}}</style>\n"
        f"<div class=wide>{wide}</div>\n<div class=narrow>{narrow}</div>\n<pre>{html.escape(answer)}</pre>\n"
    )


def draw(asked: Forecast, width: int = WIDE) -> str:
    """The SVG. Where there is less room than `width`, it is shown smaller."""
    plan, figures = asked.plan, asked.plan.figures
    rows = max(1, min(len(plan.configs[0].tensors), MAX_ROWS))
    map_height, grid_height, chart_height = 96 + max(60, 16 * rows), 84 + max(26, 20 * rows), 300
    height = 70 + map_height + grid_height + chart_height * (1 if width == WIDE else 2) + 20
    head = f"{asked.model.name:.80}: {figures.capacity_tokens:,} tokens of KV cache"
    below = f"{asked.cache_bytes}, tensor parallel {asked.tensor_parallel_size}, pipeline parallel {len(asked.stages)}"
    if not asked.fits:
        ranks = f"{len(figures.ranks)} rank{'s' if len(figures.ranks) > 1 else ''}"
        below = f"DOES NOT FIT: drawn is what there would be; {asked.cache_bytes}, {ranks}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="max-width:100%;height:auto" font-family="{FONTS}">',
        HATCHING,
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(30, 34, head, size=min(20, int((width - 60) / 0.66 / len(head))), weight="bold"),
        text(30, 54, below, colour=FAINT if asked.fits else THEIRS),
    ]
    if plan.groups and figures.num_blocks:
        parts += pool(Box(30, 70, width - 60, map_height), plan, _names(asked))
        parts += sharing(Box(30, 70 + map_height, width - 60, grid_height), plan)
    if plan.groups and figures.usable_blocks:
        top, half = 70 + map_height + grid_height, (WIDE - 90) / 2
        if width == WIDE:
            places = [Box(30, top, half, chart_height), Box(60 + half, top, half, chart_height)]
        else:
            places = [Box(30, top + row * chart_height, width - 60, chart_height) for row in (0, 1)]
        parts += _charts(asked, *places)
    return "\n".join([*parts, "</svg>\n"])


def _charts(asked: Forecast, first: Box, second: Box) -> list[str]:
    length = asked.plan.figures.max_model_len
    by_length = chart(
        first,
        "Capacity by length of requests",
        "tokens of each request",
        "tokens at once",
        list(_lines(list(_by_length(asked)))),
        length,
    )
    by_flight = chart(
        second,
        f"Capacity by tokens in flight, at {length:,}",
        "tokens of one step (--max-num-batched-tokens)",
        "tokens at once",
        list(_lines(list(_by_in_flight(asked)))),
        min(max(asked.inquiry.max_num_batched_tokens, MIN_IN_FLIGHT), MAX_IN_FLIGHT),
    )
    return by_length + by_flight


def _lines(points: list[tuple[int, float, float]]) -> Iterator[Line]:
    ours = [(float(x), mine) for x, mine, _ in points if mine > 0]
    theirs = [(float(x), other) for x, _, other in points if other > 0]
    if ours:
        yield Line("Octavo", OURS, ours)
    if theirs:
        yield Line("reference engine", THEIRS, theirs, is_dashed=True)


def _by_length(asked: Forecast) -> Iterator[tuple[int, float, float]]:
    """(length, tokens that fit at once, the same as the reference counts them) with the blocks of the plan."""
    answer, longest = asked.reference, asked.plan.figures.max_model_len
    least = min(longest, max(group.spec.block_size for group in asked.plan.groups))
    lengths = {longest, least} | {2**power for power in range(4, 31) if least < 2**power < longest}
    for length in sorted(lengths):
        theirs = 0.0
        if answer.plan is not None:
            blocks = sum(
                group.spec.reference_max_blocks(length, in_flight_tokens=answer.in_flight_tokens)
                for group in answer.plan.groups
            )
            theirs = answer.plan.figures.num_blocks / blocks * length
        yield length, asked.concurrency(length) * length, theirs


def _by_in_flight(asked: Forecast) -> Iterator[tuple[int, float, float]]:
    """The same for other numbers of tokens in a step, planned anew for the same bytes."""
    available = [budget.kv_bytes for budget in asked.budgets]
    specs = {name: spec for own in asked.specs_by_rank for name, spec in own.items()}
    states = state_rule(asked.model.model_type, specs, asked.compute_dtype, asked.tensor_parallel_size)
    in_flight = MIN_IN_FLIGHT
    while in_flight <= MAX_IN_FLIGHT:
        options = msgspec.structs.replace(
            asked.options,
            max_model_len=asked.plan.figures.max_model_len,
            auto_fit=False,
            max_num_batched_tokens=in_flight,
        )
        ours = try_plan(asked.specs_by_rank, available, options, asked.shared_by_rank).plan.figures
        answer = ask_reference(
            asked.specs_by_rank,
            available,
            options,
            asked.shared_by_rank,
            in_flight_tokens=in_flight,
            states=states,
        )
        theirs = answer.plan.figures.capacity_tokens if answer.plan is not None else 0
        yield in_flight, float(ours.capacity_tokens), float(theirs)
        in_flight *= 2


def _names(asked: Forecast) -> dict[LayerSpec, str]:
    words = {"sliding_window": "window", "chunked_local": "chunk", "mamba": "state"}
    names = {}
    for group in asked.plan.groups:
        width = getattr(group.spec, "window", None) or getattr(group.spec, "chunk", None)
        names[group.spec] = words.get(group.spec.kind, group.spec.kind) + (f" {width:,}" if width else "")
    return names


def _png(drawn: str) -> bytes:
    """`drawn` in twice its size. Letters come from the system's fonts; a picture without any is refused."""
    try:
        renderer: Any = importlib.import_module("resvg_py")
    except ImportError:
        raise ConfigError(
            "A PNG needs the package resvg_py, which is not installed.",
            remedy='Run `pip install "octavo[plot]"`, or write a .svg or .html file.',
        ) from None
    probe = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" font-family="{FONTS}">'
    if len({bytes(renderer.svg_to_bytes(svg_string=f"{probe}{letter}</svg>")) for letter in (text(0, 8, "W"), "")}) < 2:
        raise ConfigError("This system has no fonts to draw a PNG with.", remedy="Write a .svg or .html file.")
    return bytes(renderer.svg_to_bytes(svg_string=drawn, zoom=2))
