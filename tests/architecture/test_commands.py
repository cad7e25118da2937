"""The commands that developers and CI run are there, and together they run every test."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from typing import Any

import pytest

from tools.imports import ROOT

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def _recipe(target: str) -> str:
    match = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    assert match is not None, f"make {target} is gone"
    return match[1]


@pytest.mark.parametrize(
    "target", ["demo", "check", "test", "test-long", "oracle", "bench", "docs", "clean", "lint", "format"]
)
def test_every_command_is_there(target: str) -> None:
    assert _recipe(target)
    assert re.search(rf"^\.PHONY:.*\b{target}\b", MAKEFILE, re.MULTILINE)


def test_the_tiers_add_up_to_all_tests() -> None:
    assert '-m "not slow and not long"' in _recipe("check")
    assert '-m "not long"' in _recipe("test")
    assert "-m " not in _recipe("test-long")
    markers = {marker.split(":")[0] for marker in PYPROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert markers == {"slow", "long", "model"}


def test_ci_runs_what_a_change_must_pass() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text("utf-8")
    assert "set -euo pipefail" in text
    assert "make test" in text
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_library_that_is_declared_has_its_reason_on_record() -> None:
    record = (ROOT / "docs" / "decisions" / "0000-dependencies.md").read_text("utf-8")
    project = PYPROJECT["project"]
    declared = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = [re.split(r"[<>=!~ \[]", requirement)[0] for requirement in declared]
    assert [name for name in names if name not in record] == []


def test_octavo_and_its_package_have_one_version() -> None:
    assert f'__version__ = "{PYPROJECT["project"]["version"]}"' in (ROOT / "octavo" / "__init__.py").read_text("utf-8")
