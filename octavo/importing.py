"""Libraries imported as fast as they can be, for a process that is Octavo's own.

Half of the time until a small model's first token is spent on importing libraries, and half of that on what no forward
needs. For the commands, whose process runs Octavo and nothing else:

- torch's largest library is loaded by a thread while Python imports other things (`read_ahead`), from the start of the
  process on where it is told what it is for (`octavo.__main__`);
- torch is imported without its definitions of operators in Python (`import_torch`): those of the meta device and the
  decompositions, which its compiler takes. They come when anything asks for the compiler, or by `complete_torch`;
- Python looks for garbage only once libraries are imported (`collect_from_now`): the millions of
  objects that imports make are none.

A program that imports `octavo` gets none of this: its process is its own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBRARIES = ("libtorch_global_deps.so", "libtorch_cpu.so")
"""In the order in which torch itself loads them; the first for the whole process, as torch does."""

_SMALL_EXTENSIONS = (
    "_bisect", "_blake2", "_bz2", "_contextvars", "_csv", "_ctypes", "_datetime", "_decimal", "_hashlib", "_heapq",
    "_json", "_lzma", "_opcode", "_pickle", "_posixsubprocess", "_queue", "_random", "_sha2", "_sha512", "_socket",
    "_struct", "_typing", "_uuid", "_zoneinfo", "array", "binascii", "fcntl", "math", "resource", "select", "zlib",
    "markupsafe", "tokenizers",
)  # fmt: skip
"""Extension modules, or packages around one, that commands import before numpy. While one library is loaded the system
loads no other, so whoever imported one of these meanwhile would wait for torch's."""

_PYTHON_OPERATORS = "torch._meta_registrations"
_COMPILERS = frozenset({"torch._dynamo", "torch._inductor", "torch._decomp", "torch._refs", "torch._prims"})
"""What builds on operators in Python, or is part of them. torch imports each of them only when it is used."""


_reading = threading.Event()
"""Set once a thread loads torch's libraries, or has."""


@contextmanager
def hurry() -> Iterator[None]:
    """A command, which is about to import: garbage is looked for from `collect_from_now` on, torch is read ahead."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        read_ahead()
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_from_now() -> None:
    """Look for garbage again, but never among what there is by now."""
    gc.freeze()
    gc.enable()


def read_ahead() -> None:
    """Let a thread load torch's libraries, while this one goes on. Does nothing the second time, nor where they are not
    as on Linux."""
    if "torch" in sys.modules or _reading.is_set():
        return
    _reading.set()
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    paths = [Path(found.origin).with_name("lib") / name for name in _LIBRARIES]
    if all(path.is_file() for path in paths):
        for name in _SMALL_EXTENSIONS:
            with suppress(ImportError):
                importlib.import_module(name)
        threading.Thread(target=_load, args=(paths,), name="read-ahead", daemon=True).start()


def _load(paths: Sequence[Path]) -> None:
    # `ctypes.CDLL` keeps other threads out while it loads; a foreign function does not. What fails here fails again,
    # and is told, when torch is imported.
    load = ctypes.CDLL(None).dlopen
    load.restype = ctypes.c_void_p
    load.argtypes = (ctypes.c_char_p, ctypes.c_int)
    for path, scope in zip(paths, (os.RTLD_GLOBAL, os.RTLD_LOCAL), strict=True):
        if not load(os.fsencode(path), os.RTLD_NOW | scope):
            return


def import_torch() -> None:
    """Import torch without its operators in Python. Does nothing when torch is imported already."""
    if "torch" in sys.modules:
        return
    sys.modules[_PYTHON_OPERATORS] = _StandIn(_PYTHON_OPERATORS)
    try:
        torch: Any = importlib.import_module("torch")
    finally:
        del sys.modules[_PYTHON_OPERATORS]
    sys.meta_path.insert(0, _COMPLETING)
    # From torch 2.13 on, generators of random numbers get their metaclass from one of the modules left out.
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


def complete_torch() -> None:
    """Import what `import_torch` left out."""
    if _COMPLETING in sys.meta_path:
        sys.meta_path.remove(_COMPLETING)
        importlib.import_module(_PYTHON_OPERATORS)


class _StandIn(ModuleType):
    """A module that is not imported. Owns, never: nothing."""


class _Completing(PathFinder):
    """Completes torch as soon as its compiler is imported. Finds nothing."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # type: ignore[override]
        if fullname in _COMPILERS:
            complete_torch()
        return None


_COMPLETING = _Completing()
