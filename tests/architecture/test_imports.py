"""Who may import whom: DESIGN's table as data, checked against every direct import (lazy and typing ones included)."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tools.imports import Import, imports, part_of, sources

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "error_report": {"errors"},
    "parameters": {"errors"},
    "structured_outputs": {"parameters", "errors"},
    "request": {"structured_outputs", "parameters", "config", "errors"},
    "kv": {"errors", "config"},
    "messages": {"error_report", "kv", "request", "config"},
    "compiling": {"config", "errors"},
    "importing": set(),
    "formats": {"compiling", "kv", "config", "errors"},
    "planning": {"formats", "kv", "config", "errors"},
    "cache": {"kv", "request", "errors"},
    "sched": {"cache", "kv", "request", "messages", "config", "errors"},
    "attention": {"compiling", "kv", "errors"},
    "models": {"attention", "formats", "compiling", "importing", "kv", "config", "errors"},
    "worker": {"models", "attention", "compiling", "kv", "messages", "config", "errors"},
    "executor": {"worker", "error_report", "importing", "kv", "messages", "config", "errors"},
    "engine": {
        "error_report", "executor", "worker", "models", "attention", "sched", "cache", "formats", "compiling",
        "messages", "kv", "request", "structured_outputs", "config", "errors",
    },
    "evaluate": {"engine", "request", "errors"},
    "observe": {"messages", "kv", "request"},
    "server": {
        "engine", "observe", "messages", "kv", "request", "parameters", "structured_outputs", "config", "errors",
    },
    "cli": {
        "octavo", "server", "evaluate", "engine", "executor", "worker", "planning", "formats", "importing", "kv",
        "request", "messages", "config", "errors",
    },
    "octavo": {"cli", "importing", "engine", "planning", "kv", "request", "structured_outputs", "config", "errors"},
}  # fmt: skip
"""Part -> parts of Octavo that it may import besides itself."""

HOST_HOUSE = (
    "errors", "config", "parameters", "structured_outputs", "request", "messages", "compiling", "kv", "formats",
    "planning", "cache", "sched",
)  # fmt: skip
"""Decides which block holds which token. Never imports torch, so that plans need no device library."""

STDLIB = sys.stdlib_module_names

THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "config": {"msgspec"},
    "parameters": {"msgspec"},
    "structured_outputs": {"msgspec"},
    "request": {"msgspec"},
    "messages": {"msgspec"},
    "compiling": {"numba"},
    "kv": {"msgspec"},
    "formats": {"msgspec", "numpy", "numba"},
    "planning": {"msgspec"},
    "cache": {"msgspec", "numpy", "numba"},
    "sched": {"msgspec", "numpy", "numba"},
}
"""Libraries of the host house. The device house, the engine and the command line may use any declared dependency."""

ONE_USER = {("octavo.formats.source", "huggingface_hub"), ("octavo.planning.picture", "resvg_py")}
"""Libraries of the host house that one file needs, and loads when it does: to fetch a hub id, to write a PNG."""

LAZY_OWN = ("octavo", "cli")
"""Parts that may import Octavo's own modules inside functions: the public names and the command dispatch."""


def _own(found: Import) -> bool:
    return found.target.split(".")[0] == "octavo"


def _where(found: Import) -> str:
    return f"{found.importer}:{found.line} imports {found.target}"


def test_every_part_is_in_the_table() -> None:
    assert {source.part for source in sources()} <= set(ALLOWED)


def test_the_table_has_no_cycle() -> None:
    remaining = dict(ALLOWED)
    while remaining:
        free = [part for part, needs in remaining.items() if not needs & set(remaining)]
        # The package root offers the public names and cli asks it for its version: the one allowed pair.
        assert free or set(remaining) == {"cli", "octavo"}, f"a cycle among {sorted(remaining)}"
        for part in free or list(remaining):
            del remaining[part]


def test_parts_import_only_what_the_table_allows() -> None:
    wrong = [
        _where(found)
        for found in imports()
        if _own(found)
        and part_of(found.target) != part_of(found.importer)
        and part_of(found.target) not in ALLOWED[part_of(found.importer)]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_host_house_uses_only_its_libraries() -> None:
    wrong = [
        _where(found)
        for found in imports()
        if (part := part_of(found.importer)) in HOST_HOUSE
        and (library := found.target.split(".")[0]) not in ("octavo", "__future__", *THIRD_PARTY[part])
        and library not in STDLIB
        and not (found.lazy and (found.importer, library) in ONE_USER)
    ]
    assert not wrong, "\n".join(wrong)


def test_own_modules_are_imported_lazily_only_by_the_command_dispatch_and_the_public_names() -> None:
    wrong = [
        _where(found) for found in imports() if found.lazy and _own(found) and part_of(found.importer) not in LAZY_OWN
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_hides_behind_type_checking() -> None:
    wrong = [source.name for source in sources() if "TYPE_CHECKING" in source.text and source.name != "octavo"]
    assert not wrong, f"imports under TYPE_CHECKING hide a cycle: {wrong}"


def test_no_relative_import() -> None:
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong, wrong


def test_the_environment_is_read_in_config_alone() -> None:
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        if source.name != "octavo.config"
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and "environ" in [a.name for a in node.names])
    ]
    assert not wrong, f"read_environment() in octavo/config.py is the one reader: {wrong}"


@pytest.mark.slow
def test_the_host_house_and_the_package_root_load_without_torch() -> None:
    names = [
        source.name for source in sources() if source.part in HOST_HOUSE or source.name in ("octavo", "octavo.cli")
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "heavy = {'torch', 'transformers', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
