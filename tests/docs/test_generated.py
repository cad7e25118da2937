"""Generated parts of the documents are those that the code makes now."""

from __future__ import annotations

import re

import pytest

from tools.draw import ARCHITECTURE, DECISIONS, PICTURE, decisions, fill, generated
from tools.import_picture import direct_imports, draw, levels, reduced
from tools.imports import ROOT


@pytest.mark.slow
def test_every_generated_document_is_fresh() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in generated().items() if path.read_text("utf-8") != text]
    assert not stale, f"run `make docs`: {stale}"


def test_the_picture_is_fresh() -> None:
    assert PICTURE.read_text("utf-8") == draw(), "run `make docs`"


def test_the_list_of_decisions_is_fresh_and_numbers_are_unique() -> None:
    assert decisions() in DECISIONS.read_text("utf-8"), "run `make docs`"
    numbers = re.findall(r"^- \[(\d+)\]", decisions(), re.MULTILINE)
    assert len(numbers) == len(set(numbers))
    assert [int(number) for number in numbers] == sorted(int(number) for number in numbers)


def test_parts_are_filled_and_the_rest_is_kept() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n"
    assert fill(text, {"x": lambda: "new\n"}) == "a\n<!-- generated: x -->\nnew\n<!-- end -->\nb\n"
    with pytest.raises(KeyError):
        fill(text, {})


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}
    assert levels(graph) == {"a": 2, "b": 1, "c": 0}


def test_every_part_of_the_package_is_in_the_picture() -> None:
    assert {"kv", "cache", "sched", "attention", "models", "worker", "engine"} <= set(direct_imports())
    assert all(f">{part}</text>" in draw() for part in direct_imports())


def test_the_walks_are_in_the_architecture_document() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    for name in ("config-walk", "token-walk"):
        assert re.search(rf"<!-- generated: {name} -->\n.{{500,}}?<!-- end -->", text, re.DOTALL)
