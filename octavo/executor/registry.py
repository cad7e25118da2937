"""Which executors there are. A class is imported when it is asked for, so a missing library hurts only who needs it."""

from __future__ import annotations

import importlib

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.executor.executor import Executor

EXECUTORS: dict[str, str] = {
    "inproc": "octavo.executor.inproc:InprocExecutor",
}
"""Name -> `module:Class`. A class takes the `EngineConfig` alone and starts nothing before `start()`."""


def create_executor(config: EngineConfig) -> Executor:
    """The executor that `config.parallel.executor` names: one of `EXECUTORS`, or any `module:Class`.

    Raises `ConfigError` for an unknown name, a class that cannot be imported, or one that refuses the config.
    """
    name = config.parallel.executor
    path = EXECUTORS.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise ConfigError(
            f"--executor is {name!r}.",
            remedy="It must be one of " + ", ".join(EXECUTORS) + ", or the module:Class of another executor.",
        )
    try:
        executor_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The executor {name!r} cannot be imported: {error}.", remedy=f"Install what {module_name} needs."
        ) from error
    if not (isinstance(executor_class, type) and issubclass(executor_class, Executor)):
        raise ConfigError(f"{path} is not an executor.", remedy="Name a subclass of octavo.executor.executor.Executor.")
    return executor_class(config)  # type: ignore[call-arg]
