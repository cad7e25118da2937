"""The planner for programs: `octavo.plan_kv_cache("model", kv_memory="24GiB")`. Names are those of `octavo plan`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from octavo.config import parse_bytes
from octavo.errors import ConfigError, PlanError
from octavo.kv.planner import KVCachePlan
from octavo.planning.devices import find_devices, known_devices
from octavo.planning.forecast import Forecast, find_subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine

Sizes = int | str | Sequence[int | str]


class PlanKeywords(TypedDict, total=False):
    """What `octavo plan` takes as flags. An absent keyword, and None, take the default.

    Sizes are bytes, or texts with a unit (`"24GiB"`); several of them are those of pipeline stages or of ranks.
    """

    kv_memory: Sizes | None
    kv_cache_memory_bytes: Sizes | None
    gpu: str | None
    memory: Sizes | None
    memory_utilization: float
    gpu_memory_utilization: float
    weights: int | str | None
    runtime_memory: int | str | None
    devices: str | os.PathLike[str] | None
    max_model_len: int | None
    lengths: Sequence[int] | None
    dtype: str
    kv_cache_dtype: str
    block_size: int
    enable_prefix_caching: bool
    hybrid: bool
    num_blocks_override: int | None
    num_gpu_blocks_override: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    max_chunk_tokens: int | None
    max_in_flight_tokens: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int
    pipeline_layers: Sequence[int] | None


_ALIASES = {
    "kv_cache_memory_bytes": "kv_memory",
    "gpu_memory_utilization": "memory_utilization",
    "num_gpu_blocks_override": "num_blocks_override",
}


def plan_kv_cache(
    model: str | os.PathLike[str], *, revision: str | None = None, **options: Unpack[PlanKeywords]
) -> KVCachePlan:
    """The frozen plan that the engine would make for `model`: one `KVCacheConfig` for each rank, and its figures.

    `model` is `demo`, a folder, a config.json, a .gguf file or a hub id. Without `kv_memory`, `gpu` or `memory` the
    plan is the smallest that holds one request of `max_model_len` tokens.

    Raises `PlanError` where one request does not fit, with the length and the bytes that would; `ConfigError` for
    options that cannot be, `ModelFileError` and `UnsupportedModelError` for models that cannot be read.
    """
    asked = ask(model, revision=revision, **options)
    if isinstance(asked.refusal, PlanError):
        raise asked.refusal
    return asked.plan


def ask(model: str | os.PathLike[str], *, revision: str | None = None, **options: Unpack[PlanKeywords]) -> Forecast:
    """As `plan_kv_cache`, with all that `octavo plan` knows beside the plan; what does not fit is no error here."""
    return forecast(find_subject(os.fspath(model), revision), inquiry_from(options))


def inquiry_from(options: Mapping[str, Any]) -> Inquiry:
    """The inquiry that keywords describe. Raises `ConfigError` for unknown ones and for values that cannot be."""
    given: dict[str, Any] = {}
    for keyword, value in options.items():
        name = _ALIASES.get(keyword, keyword)
        if name not in PlanKeywords.__annotations__:
            near = difflib.get_close_matches(keyword, PlanKeywords.__annotations__, n=3)
            meant = f"Did you mean {' or '.join(near)}?" if near else "See PlanKeywords for those that there are."
            raise ConfigError(f"{keyword} is no option of a plan.", remedy=meant)
        if value is not None and name in given:
            raise ConfigError(f"{keyword} is given twice, under two names.", remedy="Give one of them.")
        if value is not None:
            given[name] = value
    device, num_devices = None, 1
    own = given.pop("devices", None)
    if "gpu" in given:
        device, num_devices = find_devices(given.pop("gpu"), known_devices(None if own is None else Path(own)))
    elif own is not None:
        raise ConfigError("A list of devices is given, and none is chosen.", remedy="Choose one with --gpu.")
    machine = {field: read(given.pop(name)) for name, (field, read) in _MACHINE_FIELDS.items() if name in given}
    for name in ("lengths", "pipeline_layers"):
        if name in given:
            given[name] = tuple(given[name])
    return Inquiry(machine=Machine(device=device, num_devices=num_devices, **machine), **given)


def _sizes(value: Any) -> tuple[int, ...]:
    several = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    return tuple(parse_bytes(part) for part in several)


_MACHINE_FIELDS: dict[str, tuple[str, Any]] = {
    "kv_memory": ("kv_memory_bytes", _sizes),
    "memory": ("memory_bytes", _sizes),
    "memory_utilization": ("memory_utilization", float),
    "weights": ("weight_bytes", parse_bytes),
    "runtime_memory": ("runtime_bytes", parse_bytes),
}
"""Keyword -> the field of `Machine`, and how its value is read."""
