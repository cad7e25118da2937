"""What a command's process does not import, that it comes when it is asked for, and when garbage is looked for."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo import importing

LEFT_OUT = ("torch._meta_registrations", "torch._decomp", "torch._refs", "torch._prims", "torch._dynamo")

_NARROW = f"""
import sys
from octavo.importing import complete_torch, import_torch, read_ahead
read_ahead()
import_torch()
import torch
left_out = {LEFT_OUT!r}
assert not [name for name in left_out if name in sys.modules]
"""


@pytest.fixture(autouse=True)
def _collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(importing, "_reading", threading.Event())
    yield
    gc.unfreeze()
    gc.enable()


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _NARROW + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_torch_computes_and_draws_without_its_operators_in_python() -> None:
    program = """
drawn = torch.randn(3, generator=torch.Generator().manual_seed(5))
assert isinstance(torch.Generator(), torch.Generator) and not isinstance(drawn, torch.Generator)
print(torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(5))))
print((torch.ones(2, 2) @ torch.ones(2, 2)).tolist())
assert not [name for name in left_out if name in sys.modules]
"""
    assert _run(program) == "True\n[[2.0, 2.0], [2.0, 2.0]]\n"


@pytest.mark.slow
def test_who_compiles_gets_all_of_torch() -> None:
    program = """
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
assert not [name for name in left_out if name not in sys.modules]
print(torch.Generator().manual_seed(5).initial_seed())
"""
    assert _run(program) == "[2.0, 2.0]\n5\n"


@pytest.mark.slow
def test_torch_can_be_completed_and_then_knows_meta_operators_in_python() -> None:
    program = """
complete_torch()
complete_torch()
print(torch.ops.aten.linalg_eig(torch.empty(3, 3, device="meta"))[0].shape)
"""
    assert _run(program).splitlines()[-1] == "torch.Size([3])"


def test_a_torch_that_is_imported_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    before = list(sys.meta_path)
    importing.import_torch()
    importing.complete_torch()
    importing.read_ahead()
    assert sys.meta_path == before
    assert "read-ahead" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("names", [(), importing._LIBRARIES[:1], importing._LIBRARIES])
def test_what_cannot_be_read_ahead_is_left_to_the_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """No libraries, one of two, and two that are none."""
    (tmp_path / "lib").mkdir()
    for name in names:
        (tmp_path / "lib" / name).write_text("not a library")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torch" else None)
    importing.read_ahead()
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join(10)
            assert not thread.is_alive()


def test_without_torch_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    importing.read_ahead()


def test_it_is_read_ahead_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[object] = []
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importing, "_LIBRARIES", ())
    monkeypatch.setattr(importing, "_load", begun.append)
    for _ in range(2):
        importing.read_ahead()
        for thread in threading.enumerate():
            if thread.name == "read-ahead":
                thread.join(10)
    assert begun == [[]]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["generate", "x"], ["bench", "offline", "--workload", "w5.json"]])
def test_nothing_that_comes_before_numpy_waits_for_torch(arguments: list[str], tmp_path: Path) -> None:
    request = '{"name": "w5", "requests": [{"prompt": [1], "max_tokens": 1}]}'
    (tmp_path / "w5.json").write_text(request)
    program = f"""
import importlib.machinery, os, sys
from octavo import __main__, importing
loader, found = importlib.machinery.ExtensionFileLoader, []
create = loader.create_module

def note(self, spec):
    if spec.name.startswith("numpy."):
        print(found)
        sys.stdout.flush()
        os._exit(0)
    found.append(spec.name)
    return create(self, spec)

class Thread:
    def __init__(self, target=None, args=(), **how):
        loader.create_module = note
    def start(self):
        pass

importing.threading.Thread = Thread
sys.argv = ["octavo", *{arguments!r}]
__main__.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_command_looks_for_garbage_once_libraries_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "read_ahead", lambda: None)
    with importing.hurry():
        assert not gc.isenabled()
        importing.collect_from_now()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0


def test_a_command_that_ends_early_leaves_the_collector_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "read_ahead", lambda: None)
    with pytest.raises(KeyError), importing.hurry():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with importing.hurry():
        pass
    assert not gc.isenabled()
