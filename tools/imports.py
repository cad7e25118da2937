"""Which module imports which, read from the sources themselves.

Every direct import counts: at the top of a file, inside a function (lazy), and under `if TYPE_CHECKING` (typing).
Used by the architecture tests and by the picture in docs/architecture.md.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "octavo"


@dataclass(frozen=True, slots=True)
class Import:
    """One import of one module by one file."""

    importer: str
    """Dotted name of the importing module, e.g. `octavo.kv.planner`."""
    target: str
    """Dotted name of what is imported, as far as it is a module, e.g. `octavo.kv.specs` or `numpy`."""
    line: int
    lazy: bool
    """Inside a function, or by `importlib.import_module` with a literal name."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The part of the package the file belongs to: `kv`, `errors`, ...; `octavo` for the package's own files."""
        return part_of(self.name)


def part_of(module: str) -> str:
    """`octavo.kv.planner` -> `kv`; `octavo.errors` -> `errors`; `octavo` and `octavo.__main__` -> `octavo`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 and pieces[1] != "__main__" else "octavo"


@cache
def sources() -> tuple[Source, ...]:
    """All files of the package, in order of their names."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        pieces = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)
        text = path.read_text(encoding="utf-8")
        found.append(Source(name, path, text, ast.parse(text)))
    return tuple(found)


@cache
def imports() -> tuple[Import, ...]:
    """Every direct import of every file, in order of file and line."""
    modules = {source.name for source in sources()}
    return tuple(found for source in sources() for found in _imports_of(source, modules))


def _imports_of(source: Source, modules: set[str]) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, *, lazy: bool) -> None:
        line = getattr(node, "lineno", 0)
        found.extend(Import(source.name, target, line, lazy) for target in _targets(node, modules))
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy=inside)

    visit(source.tree, lazy=False)
    return found


def _targets(node: ast.AST, modules: set[str]) -> list[str]:
    """Modules that `node` itself imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        # `from octavo.kv import specs` imports the module octavo.kv.specs; `from octavo.errors import X` octavo.errors.
        full = [f"{node.module}.{alias.name}" for alias in node.names]
        return sorted({name if name in modules else node.module for name in full})
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module"):
        names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        return [name for name in names if name]
    return []
