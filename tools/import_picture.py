"""The picture of who imports whom, drawn from the imports that are really there.

An arrow means "imports". Arrows that follow from others are left out: where A imports B and B imports C, A may import C
as well. Parts stand as high as the longest chain of imports under them.
"""

from __future__ import annotations

from html import escape

from tools.imports import imports, part_of, sources

BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW, MARGIN = 190, 46, 220, 88, 24

SUBTITLES = {
    "octavo": "the public names",
    "cli": "one file a command",
    "engine": "core, client, LLM",
    "executor": "where ranks live",
    "worker": "tables, memory, steps",
    "models": "what is computed",
    "attention": "how bytes are written and read",
    "sched": "who runs next",
    "cache": "who owns which block",
    "formats": "what a file says",
    "messages": "everything that crosses",
    "kv": "the plan",
    "request": "what was asked",
    "config": "what the user decides",
    "errors": "fact, numbers, remedy",
}

PLACES = {
    "cli": 1.0, "octavo": 2.0, "engine": 1.5, "executor": 2.5, "worker": 2.5, "sched": 0.0, "models": 2.5, "cache": 0.0,
    "formats": 2.0, "attention": 3.0, "messages": 1.0, "kv": 2.0, "request": 0.6, "config": 2.0, "errors": 1.3,
}  # fmt: skip
"""Column of each part, chosen so that arrows do not run through boxes; a part that is not here takes the next free."""

HOUSES = {
    "host": ("#e3edf9", "#3b6ea5", ("kv", "formats", "cache", "sched")),
    "device": ("#fbeadb", "#b5651d", ("attention", "models", "worker")),
}
"""House -> fill, border, parts."""
PLAIN = ("#f2f2f2", "#707070")


def direct_imports() -> dict[str, set[str]]:
    """Part -> parts that it imports. The package root and the command line, which import each other, are kept apart."""
    found: dict[str, set[str]] = {source.part: set() for source in sources()}
    for one in imports():
        importer, target = part_of(one.importer), part_of(one.target)
        if one.target.split(".")[0] == "octavo" and importer != target and {importer, target} != {"octavo", "cli"}:
            found[importer].add(target)
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """`graph` without the arrows that follow from others."""
    reach: dict[str, set[str]] = {}

    def reachable(part: str) -> set[str]:
        if part not in reach:
            reach[part] = (
                set().union(*(reachable(target) | {target} for target in graph[part])) if graph[part] else set()
            )
        return reach[part]

    return {
        part: {target for target in targets if not any(target in reachable(other) for other in targets - {target})}
        for part, targets in graph.items()
    }


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Length of the longest chain of imports under each part; `messages` is lifted beside what reads it."""
    known: dict[str, int] = {}

    def level(part: str) -> int:
        if part not in known:
            known[part] = 1 + max((level(target) for target in graph[part]), default=-1)
        return known[part]

    for part in graph:
        level(part)
    readers = [known[part] for part, targets in graph.items() if "messages" in targets]
    if readers:
        known["messages"] = max(known["messages"], min(readers) - 1)
    return known


def draw() -> str:
    """The picture as SVG text."""
    graph = direct_imports()
    arrows, height_of = reduced(graph), levels(graph)
    top = max(height_of.values())
    used: dict[int, float] = {}
    corner: dict[str, tuple[float, float]] = {}
    for part in sorted(graph, key=lambda part: (-height_of[part], PLACES.get(part, 99.0))):
        row = top - height_of[part]
        column = PLACES.get(part, used.get(row, 0.0))
        used[row] = max(used.get(row, 0.0), column + 1)
        corner[part] = (MARGIN + column * COLUMN, MARGIN + row * ROW)
    width = int(max(x for x, _ in corner.values()) + BOX_WIDTH + MARGIN)
    height = int(MARGIN + top * ROW + BOX_HEIGHT + MARGIN + 24)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="DejaVu Sans, Verdana, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
    ]
    lines += [_arrow(corner[part], corner[target]) for part in sorted(arrows) for target in sorted(arrows[part])]
    lines += [_box(part, corner[part]) for part in sorted(graph)]
    lines.append(_legend(height))
    return "\n".join([*lines, "</svg>", ""])


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH / 2, end[1]
    # Arrows that lead sideways start and end beside the middle of their boxes, so that they stay apart.
    aside = max(-60.0, min(60.0, (x1 - x2) / 6))
    x1, x2 = x1 - aside, x2 + aside
    bend = min(40.0, (y2 - y1) / 2)
    path = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2 - 2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.3" marker-end="url(#head)"/>'


def _box(part: str, corner: tuple[float, float]) -> str:
    fill, border = next(((fill, border) for fill, border, parts in HOUSES.values() if part in parts), PLAIN)
    x, y = corner
    middle = x + BOX_WIDTH / 2
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" '
        f'stroke="{border}" stroke-width="1.4"/>'
        f'<text x="{middle:.0f}" y="{y + 19:.0f}" text-anchor="middle" font-size="14" font-weight="bold">{part}</text>'
        f'<text x="{middle:.0f}" y="{y + 36:.0f}" text-anchor="middle" font-size="10.5" fill="#333">'
        f"{escape(SUBTITLES.get(part, ''))}</text>"
    )


def _legend(height: int) -> str:
    texts = [("host house: never imports torch", *HOUSES["host"][:2]), ("device house", *HOUSES["device"][:2])]
    pieces = []
    for number, (text, fill, border) in enumerate(texts):
        x, y = MARGIN + number * 260, height - 26
        pieces.append(
            f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{fill}" stroke="{border}"/>'
            f'<text x="{x + 20}" y="{y + 12}" font-size="11.5" fill="#333">{text}</text>'
        )
    return "".join(pieces)
