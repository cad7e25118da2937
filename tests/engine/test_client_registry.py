"""Which client a config gets."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.engine import client_registry
from octavo.engine.client_registry import CLIENTS, start_client
from octavo.engine.core_client import EngineCoreClient
from octavo.errors import ConfigError


def config_of(num_cores: int) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="fake"), parallel=ParallelConfig(data_parallel_size=num_cores))


def test_every_client_can_be_imported() -> None:
    for path in CLIENTS.values():
        module, _, name = path.partition(":")
        assert issubclass(getattr(importlib.import_module(module), name), EngineCoreClient)


def test_one_core_is_in_this_process_and_several_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def client(config: EngineConfig, on_stage: Any) -> Any:
        return config.parallel.data_parallel_size

    monkeypatch.setattr("octavo.engine.inproc_client.InprocClient", lambda config, on_stage: "here")
    monkeypatch.setattr("octavo.engine.threaded_client.ThreadedClient", lambda config, on_stage: "elsewhere")
    assert start_client(config_of(1), lambda report: None) == "here"
    assert start_client(config_of(2), lambda report: None) == "elsewhere"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name="zmq")

    monkeypatch.setattr(client_registry.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"data-parallel-size 2 needs the library zmq.*octavo\[serve\]"):
        start_client(config_of(2), lambda report: None)
