"""Rewrites the generated parts of the documents: `python -m tools.draw`, or `make docs`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; a picture is a file of its own. The test
tests/docs/test_generated.py fails when one of them is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools.import_picture import draw
from tools.imports import ROOT
from tools.plan_page import answers, pictures
from tools.toy_run import toy_run
from tools.walks import config_walk, token_walk

ARCHITECTURE = ROOT / "docs" / "architecture.md"
DECISIONS = ROOT / "docs" / "decisions" / "README.md"
PLAN = ROOT / "docs" / "plan.md"
PICTURE = ROOT / "docs" / "imports.svg"

_PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def generated() -> dict[Path, str]:
    """Every document with generated parts, as it should be now."""
    run = toy_run()
    parts: dict[str, Callable[[], str]] = {
        "config-walk": lambda: config_walk(run),
        "token-walk": lambda: token_walk(run),
        "decisions": decisions,
        **answers(),
    }
    documents = {path: fill(path.read_text(encoding="utf-8"), parts) for path in (ARCHITECTURE, DECISIONS, PLAN)}
    return {PICTURE: draw(), **pictures(), **documents}


def decisions() -> str:
    """A list of the records, by their numbers and first lines."""
    records = sorted(DECISIONS.parent.glob("[0-9]*.md"))
    titles = [record.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for record in records]
    return "".join(
        f"- [{title.partition('. ')[0]}]({record.name}): {title.partition('. ')[2]}\n"
        for record, title in zip(records, titles, strict=True)
    )


def fill(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """`text` with each generated part made anew. Raises `KeyError` for a part that nobody makes."""
    return _PART.sub(lambda match: match[1] + parts[match["name"]]() + match[4], text)


def main() -> None:
    """Write what has changed, and say which files those are."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
