"""Which clients there are for callers without an event loop. Each is imported when it is asked for: one core in this
process needs no sockets."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from octavo.config import EngineConfig
from octavo.engine.core_client import EngineCoreClient
from octavo.errors import ConfigError
from octavo.messages import StageReport

CLIENTS = {
    "one core": "octavo.engine.inproc_client:InprocClient",
    "several cores": "octavo.engine.threaded_client:ThreadedClient",
}
"""Kind -> `module:Class`, which takes the `EngineConfig` and `on_stage`."""


def start_client(config: EngineConfig, on_stage: Callable[[StageReport], None]) -> EngineCoreClient:
    """The client that `config` asks for, its cores ready. Raises what they raise at their start, and `ConfigError`
    where a library is missing that it needs."""
    kind = "one core" if config.parallel.data_parallel_size == 1 else "several cores"
    module_name, _, class_name = CLIENTS[kind].partition(":")
    try:
        client_class = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--data-parallel-size {config.parallel.data_parallel_size} needs the library {error.name}, which is not "
            "installed.",
            remedy='Install it with: pip install "octavo[serve]"',
        ) from None
    client: EngineCoreClient = client_class(config, on_stage=on_stage)
    return client
