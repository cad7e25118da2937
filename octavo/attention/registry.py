"""Attention backends by name. A backend's module is imported when it is asked for, so that its needs stay its own."""

from __future__ import annotations

import importlib
from pathlib import Path

from octavo.attention.backend import AttentionBackend
from octavo.errors import ConfigError

_BACKENDS = {
    "torch_reference": ("octavo.attention.torch_reference", "create", ("cpu", "cuda")),
    "numba_cpu": ("octavo.attention.numba_cpu", "create", ("cpu",)),
}
"""Module, function that makes the backend from a number of threads and a cache folder, and its device types."""

_DEFAULTS = {"cpu": "numba_cpu"}
_FALLBACK = "torch_reference"


def backend_names(device_type: str) -> tuple[str, ...]:
    """Names of the backends that run on `device_type` (`cpu`, `cuda`)."""
    return tuple(name for name, (_, _, devices) in _BACKENDS.items() if device_type in devices)


def get_backend(name: str, device_type: str, num_threads: int = 0, cache_dir: Path | None = None) -> AttentionBackend:
    """The backend called `name`; `""` is the default of `device_type`.

    `num_threads` is how many threads a CPU backend may use; 0 means as many as torch uses. Compiled
    kernels are kept in a folder of `cache_dir`; where it is None or cannot be written, beside their sources.
    Raises `ConfigError` for an unknown name and for a backend that does not run on the device.
    """
    name = name or _DEFAULTS.get(device_type, _FALLBACK)
    if name not in _BACKENDS:
        raise ConfigError(
            f"{name!r} is not an attention backend.", remedy="Use one of " + ", ".join(backend_names(device_type)) + "."
        )
    module, function, devices = _BACKENDS[name]
    if device_type not in devices:
        raise ConfigError(
            f"The attention backend {name} does not run on a {device_type} device.",
            remedy="Use one of " + ", ".join(backend_names(device_type)) + ".",
        )
    backend: AttentionBackend = getattr(importlib.import_module(module), function)(num_threads, cache_dir)
    return backend
