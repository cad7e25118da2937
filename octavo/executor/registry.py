"""Which executors there are. A class is imported when it is asked for, so a missing library hurts only who needs it."""

from __future__ import annotations

import importlib

from octavo.config import EngineConfig, ParallelConfig
from octavo.errors import ConfigError
from octavo.executor.executor import Executor

EXECUTORS: dict[str, str] = {
    "inproc": "octavo.executor.inproc:InprocExecutor",
    "multiproc": "octavo.executor.multiproc:MultiprocExecutor",
    "mp": "octavo.executor.multiproc:MultiprocExecutor",
    "ray": "octavo.executor.ray:RayExecutor",
}
"""Name -> `module:Class`; `mp` is vLLM's name for it. A class takes the `EngineConfig` alone and starts nothing before
`start()`."""

EXTRAS = ("ray",)
"""Those that need the optional dependencies of their name."""


def find_executor(name: str) -> type[Executor]:
    """The executor class of this name: one of `EXECUTORS`, or any `module:Class`. Imports what its ranks compute with.

    Raises `ConfigError` for an unknown name, or a class that cannot be imported.
    """
    path = EXECUTORS.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise ConfigError(
            f"--distributed-executor-backend is {name!r}.",
            remedy="It must be auto, one of " + ", ".join(EXECUTORS) + ", or the module:Class of another executor.",
        )
    try:
        executor_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        needs = (
            f'Install it with: pip install "octavo[{name}]"' if name in EXTRAS else f"Install what {module_name} needs."
        )
        raise ConfigError(f"The executor {name!r} cannot be imported: {error}.", remedy=needs) from error
    if not (isinstance(executor_class, type) and issubclass(executor_class, Executor)):
        raise ConfigError(f"{path} is not an executor.", remedy="Name a subclass of octavo.executor.executor.Executor.")
    return executor_class


def chosen_executor(parallel: ParallelConfig) -> type[Executor]:
    """The executor class that `parallel.executor` names; `auto` is `inproc` for one rank and `mp` for several.

    Raises `ConfigError` as `find_executor`.
    """
    if parallel.executor != "auto":
        return find_executor(parallel.executor)
    return find_executor("inproc" if parallel.world_size == 1 else "mp")


def create_executor(config: EngineConfig) -> Executor:
    """The executor of `config`. Raises `ConfigError` as `chosen_executor`, and when the class refuses the config."""
    return chosen_executor(config.parallel)(config)  # type: ignore[call-arg]
