"""Budgets that keep every file readable in one sitting, and tests that mirror the package."""

from __future__ import annotations

import ast

from tools.imports import PACKAGE, ROOT, sources

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
DRAWERS = ("utils", "util", "helpers", "helper", "common", "misc")

CONTRACTS = {
    "octavo.attention.backend": "abstract; tests/conformance runs every backend through it",
    "octavo.executor.executor": "abstract; the executors' own tests run it",
}
"""Files without a test file of their own, and why."""


TESTED_BY = {
    "octavo.models.stage_parts": "tests/models/test_stage_cut.py",
    "octavo.attention.numba_attend": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_job": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_memory": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_packed": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_rows": "tests/attention/test_numba_emit.py",
    "octavo.attention.numba_segments": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_softmax": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_tiles": "tests/conformance/test_attention_backends.py",
    "octavo.attention.numba_vectors": "tests/attention/test_numba_emit.py",
    "octavo.attention.numba_write": "tests/attention/test_numba_cpu.py",
    "octavo.models.modules.panel_tile_kernels": "tests/models/modules/test_panel_kernels.py",
    "octavo.formats.block_kernels": "tests/formats/test_dequantize.py",
    "octavo.formats.superblock_kernels": "tests/formats/test_dequantize.py",
}
"""Kernels that nothing but the code in front of them calls, and the file whose tests drive them through it."""


def test_no_file_is_over_the_line_budget() -> None:
    long = {source.name: lines for source in sources() if (lines := source.text.count("\n")) > MAX_FILE_LINES}
    assert not long, long


def test_no_function_is_over_the_line_budget() -> None:
    long = {
        f"{source.name}.{node.name}": length
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long, long


def test_no_module_is_a_drawer() -> None:
    drawers = [source.name for source in sources() if source.name.rsplit(".", 1)[-1].strip("_") in DRAWERS]
    assert not drawers, drawers


def test_every_source_file_has_its_test_file() -> None:
    missing = []
    for source in sources():
        has_code = any(not isinstance(node, ast.Expr | ast.ImportFrom | ast.Import) for node in source.tree.body)
        if not has_code or source.name in CONTRACTS:
            continue
        relative = source.path.relative_to(PACKAGE)
        stem = relative.parent.name or "octavo" if relative.stem == "__init__" else relative.stem.strip("_")
        expected = ROOT / TESTED_BY.get(source.name, f"tests/{relative.parent}/test_{stem}.py")
        if not expected.exists():
            missing.append(f"{source.name}: {expected.relative_to(ROOT)}")
    assert not missing, "\n".join(missing)


def test_exceptions_are_files_that_exist() -> None:
    assert {*CONTRACTS, *TESTED_BY} <= {source.name for source in sources()}


def test_every_public_thing_has_a_docstring() -> None:
    bare = [
        f"{source.name}.{node.name}"
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare, "\n".join(bare)


def test_no_unfinished_place() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    found = [
        f"{source.name}:{number}"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert not found, found
