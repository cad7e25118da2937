"""Subjects and inquiries for the tests of planning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.formats.hf_config import model_config_from_hf
from octavo.formats.source import ModelFiles
from octavo.planning.forecast import Forecast, Subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine
from tests.formats.published import CONFIGS

GIB = 2**30


def subject(config: str | Mapping[str, Any]) -> Subject:
    """A published config by name, or a config, as if it lay in a file alone."""
    name = config if isinstance(config, str) else "toy"
    fields = CONFIGS[config] if isinstance(config, str) else config
    files = ModelFiles(kind="folder", path=Path("nowhere"), config_path=Path("config.json"), weight_paths=(), name=name)
    return Subject(files, fields, model_config_from_hf(fields, name=name))


def inquiry(kv_memory: int | tuple[int, ...] = GIB, **more: Any) -> Inquiry:
    """An inquiry about a cache of so many bytes; none at all for 0."""
    given = kv_memory if isinstance(kv_memory, tuple) else (kv_memory,) if kv_memory else ()
    return Inquiry(machine=Machine(kv_memory_bytes=given), **more)


def planned(config: str | Mapping[str, Any], kv_memory: int | tuple[int, ...] = GIB, **more: Any) -> Forecast:
    return forecast(subject(config), inquiry(kv_memory, **more))
