from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from octavo.planning.chart import Box
from octavo.planning.memory_map import FREE, PADDING, kinds_of, pool, sharing
from tests.planning.build import GIB, planned

BOX = Box(0, 0, 1000, 300)


def rectangles(parts: list[str]) -> list[dict[str, Any]]:
    root = ET.fromstring(f"<svg>{''.join(parts)}</svg>")
    return [dict(found.attrib, told=found.findtext("title", "")) for found in root.iter("rect")]


def test_the_pool_is_drawn_to_scale() -> None:
    asked = planned("Gemma-3-27b", 24 * GIB, max_model_len=131072)
    names = {group.spec: group.spec.kind for group in asked.plan.groups}
    drawn = rectangles(pool(BOX, asked.plan, names))
    figures = asked.plan.figures
    (background,) = [found for found in drawn if found["fill"] == FREE]
    assert float(background["width"]) == 1000
    full = [found for found in drawn if found["told"] == "request 1: full"]
    assert len(full) == len(asked.plan.configs[0].tensors)
    blocks = sum(
        blocks
        for group, blocks in zip(asked.plan.groups, figures.blocks_per_request, strict=True)
        if group.spec.kind == "full"
    )
    assert abs(float(full[0]["width"]) - 1000 * blocks / figures.num_blocks) < 0.01
    assert not any(found["told"].startswith("request 3") for found in drawn), "two whole requests fit"


def test_every_layer_stands_in_the_row_of_its_tensor() -> None:
    asked = planned("Gemma-3-1b", GIB, max_model_len=8192)
    config = asked.plan.configs[0]
    drawn = rectangles(sharing(BOX, asked.plan))
    rows: dict[str, set[str]] = {}
    for found in drawn:
        rows.setdefault(found["y"], set()).add(found["told"])
    assert sorted(map(sorted, rows.values())) == sorted(sorted(tensor.shared_by) for tensor in config.tensors)


def test_narrow_groups_show_their_padding() -> None:
    asked = planned("Gemma-3-1b", GIB, max_model_len=8192)
    plan = asked.reference.plan
    assert plan is not None
    padding = [found for found in rectangles(sharing(BOX, plan)) if found["fill"] == PADDING]
    assert len(padding) == 2, "seven groups of four, and 26 layers"


def test_kinds_have_colours_of_their_own() -> None:
    colours = kinds_of(planned("gpt-oss-20b", GIB, max_model_len=8192).plan.groups)
    assert len(set(colours.values())) == len(colours) == 2


def test_of_a_request_that_does_not_fit_the_part_is_drawn_that_does() -> None:
    asked = planned("Gemma-3-27b", 4 * GIB, max_model_len=131072)
    parts = pool(BOX, asked.plan, {group.spec: group.spec.kind for group in asked.plan.groups})
    assert any("would fit" in part for part in parts)
    drawn = rectangles(parts)
    assert {found["told"] for found in drawn} >= {"request 1: full", "request 1: sliding_window"}
    assert (
        max(float(found["x"]) + float(found["width"]) for found in drawn if found["told"]) <= BOX.left + BOX.width + 1
    )


def test_layers_of_one_group_share_nothing_and_the_title_says_so() -> None:
    assert "One group of layers" in sharing(BOX, planned("Llama-3.1-8B", GIB, max_model_len=64).plan)[0]
