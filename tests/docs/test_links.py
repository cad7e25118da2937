"""What the documents name exists: links, files, commands and flags."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.imports import PACKAGE, ROOT

DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.glob("**/README.md")]
    if ".venv" not in path.parts
)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text("utf-8"))
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids)
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"`((?:octavo|tests|docs|tools|oracle)/[\w./-]+)`", path.read_text("utf-8"))
    missing = [name for name in named if "NAME" not in name and not (ROOT / name.rstrip("/")).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=_ids)
def test_make_commands_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)\b(?=[^.\n]*`|  )", path.read_text("utf-8")))
    missing = [name for name in named if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)]
    assert not missing


def test_flags_that_are_named_exist() -> None:
    command = [sys.executable, "-m", "octavo", "generate", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "200", "PATH": ""})
    for path in DOCUMENTS:
        commands = re.findall(r"octavo generate [^`\n]*", path.read_text("utf-8"))
        flags = [flag for command in commands for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command)]
        assert [flag for flag in flags if flag not in done.stdout] == [], path


def test_the_decisions_have_their_parts() -> None:
    for path in ROOT.glob("docs/decisions/[0-9]*.md"):
        text = path.read_text("utf-8")
        assert re.match(rf"# {int(path.name[:4])}\. ", text), path.name
        for part in ("**Context", "**Choice", "**What would change our mind"):
            assert part in text, f"{path.name} has no {part}"
