"""Executors by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.errors import ConfigError
from octavo.executor.inproc import InprocExecutor
from octavo.executor.registry import EXECUTORS, EXTRAS, create_executor, find_executor


def named(name: str) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="demo"), parallel=ParallelConfig(executor=name))


def test_the_default_executor_is_the_one_of_this_process() -> None:
    assert isinstance(create_executor(EngineConfig(model=ModelSource(model="demo"))), InprocExecutor)


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_name_has_its_executor(name: str) -> None:
    if name in EXTRAS:
        pytest.importorskip(name, reason=f'needs pip install "octavo[{name}]"')
    assert type(create_executor(named(name))).__name__ == EXECUTORS[name].partition(":")[2]


def test_an_executor_from_elsewhere_is_named_by_module_and_class() -> None:
    executor = create_executor(named("octavo.executor.inproc:InprocExecutor"))
    assert isinstance(executor, InprocExecutor)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError) as caught:
        create_executor(named("imaginary"))
    assert caught.value.fact == "--distributed-executor-backend is 'imaginary'."
    assert all(name in caught.value.remedy for name in EXECUTORS)


@pytest.mark.parametrize("name", ["no.such.module:Executor", "octavo.executor.inproc:NoSuch"])
def test_a_class_that_cannot_be_imported(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        create_executor(named(name))


@pytest.mark.parametrize("name", ["octavo.config:EngineConfig", "octavo.config:parse_bytes"])
def test_something_that_is_no_executor(name: str) -> None:
    with pytest.raises(ConfigError, match="is not an executor"):
        create_executor(named(name))


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"octavo.executor.{name}", raising=False)
    with pytest.raises(ConfigError, match=rf'pip install "octavo\[{name}\]"'):
        find_executor(name)


def test_asking_for_names_imports_no_torch() -> None:
    code = "import sys, octavo.executor.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
