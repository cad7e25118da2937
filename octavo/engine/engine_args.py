"""Flat keywords, as `LLM(...)` and the command line take them, to the parts of an `EngineConfig`.

One table: keyword, the part and field it sets, how its value is read. The names that users of vLLM know work as well.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from octavo.config import (
    CacheConfig,
    EngineConfig,
    ModelSource,
    ParallelConfig,
    SchedulerConfig,
    parse_bytes,
    resolve_engine_config,
)
from octavo.errors import ConfigError


class EngineOptions(TypedDict, total=False):
    """The keywords of `LLM(...)` beside `model`. An absent keyword, and None, take the default.

    Sizes in bytes may be numbers or texts with a unit (`"1GiB"`). Each field is explained in `octavo/config.py`.
    """

    tokenizer: str | None
    revision: str | None
    dtype: str
    quantization: str | None
    max_model_len: int | None
    load_format: str
    generation_config: str
    trust_remote_code: bool
    seed: int | None
    block_size: int | None
    kv_memory: int | str | Sequence[int | str] | None
    kv_cache_memory_bytes: int | str | Sequence[int | str] | None
    memory_utilization: float
    gpu_memory_utilization: float
    kv_cache_dtype: str
    enable_prefix_caching: bool
    num_blocks_override: int | None
    num_gpu_blocks_override: int | None
    retention_interval: int | None
    kv_cache_metrics_sample: float | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    scheduling_policy: str
    enable_chunked_prefill: bool
    max_chunk_tokens: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    pipeline_layers: Sequence[int] | None
    distributed_executor_backend: str | None
    device: str
    enforce_eager: bool
    disable_log_stats: bool


def _same(value: Any) -> Any:
    return value


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _text(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _budgets(value: Any) -> Any:
    """Bytes of every rank, or a tuple where there are several."""
    if isinstance(value, str) and "," in value:
        value = value.split(",")
    if not isinstance(value, list | tuple):
        return parse_bytes(value)
    sizes = tuple(parse_bytes(size) for size in value)
    return sizes[0] if len(sizes) == 1 else sizes


def _counts(value: Any) -> tuple[int, ...]:
    counts = tuple(value) if isinstance(value, list | tuple) else ()
    if not counts or any(isinstance(count, bool) or not isinstance(count, int) for count in counts):
        raise ConfigError(
            f"pipeline_layers is {value!r:.60}.", remedy="Give the number of layers of each stage: [6, 12]."
        )
    return counts


_FIELDS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "model": ("model", "model", _path),
    "tokenizer": ("model", "tokenizer", _same),
    "revision": ("model", "revision", _same),
    "dtype": ("model", "dtype", _text),
    "quantization": ("model", "quantization", _same),
    "max_model_len": ("model", "max_model_len", _same),
    "load_format": ("model", "load_format", _same),
    "generation_config": ("model", "generation_config", _path),
    "trust_remote_code": ("model", "trust_remote_code", _same),
    "seed": ("model", "seed", _same),
    "block_size": ("cache", "block_size", _same),
    "kv_memory": ("cache", "kv_memory_bytes", _budgets),
    "memory_utilization": ("cache", "memory_utilization", _same),
    "kv_cache_dtype": ("cache", "kv_cache_dtype", _text),
    "enable_prefix_caching": ("cache", "enable_prefix_caching", _same),
    "num_blocks_override": ("cache", "num_blocks_override", _same),
    "retention_interval": ("cache", "retention_interval", _same),
    "kv_cache_metrics_sample": ("cache", "metrics_sample", _same),
    "max_num_batched_tokens": ("scheduler", "max_num_batched_tokens", _same),
    "max_num_seqs": ("scheduler", "max_num_seqs", _same),
    "scheduling_policy": ("scheduler", "policy", _same),
    "enable_chunked_prefill": ("scheduler", "enable_chunked_prefill", _same),
    "max_chunk_tokens": ("scheduler", "max_chunk_tokens", _same),
    "tensor_parallel_size": ("parallel", "tensor_parallel_size", _same),
    "pipeline_parallel_size": ("parallel", "pipeline_parallel_size", _same),
    "data_parallel_size": ("parallel", "data_parallel_size", _same),
    "pipeline_layers": ("parallel", "pipeline_layers", _counts),
    "distributed_executor_backend": ("parallel", "executor", _same),
    "device": ("parallel", "device", _same),
}
"""Keyword -> (part, field, reader)."""

_ALIASES = {
    "kv_cache_memory_bytes": "kv_memory",
    "kv_memory_bytes": "kv_memory",
    "gpu_memory_utilization": "memory_utilization",
    "num_gpu_blocks_override": "num_blocks_override",
}

_WITHOUT_EFFECT = ("enforce_eager", "disable_log_stats")
"""Keywords of vLLM that ask for what Octavo does anyway."""

_CHOICES: dict[str, tuple[str, ...]] = {"load_format": ("auto", "dummy"), "scheduling_policy": ("fcfs", "priority")}


def engine_config_from(keywords: Mapping[str, Any]) -> EngineConfig:
    """The checked config that `keywords` describe; a keyword that is absent or None keeps its default.

    Raises `ConfigError` for an unknown keyword (with the nearest known ones), for two names of one field, and for every
    value that `resolve_engine_config` refuses.
    """
    parts: dict[str, dict[str, Any]] = {"model": {}, "cache": {}, "scheduler": {}, "parallel": {}}
    for given, value in keywords.items():
        name = _ALIASES.get(given, given)
        if name not in _FIELDS and name not in _WITHOUT_EFFECT:
            raise _unknown(given)
        if value is None or name in _WITHOUT_EFFECT:
            continue
        _check_kind(given, name, value)
        part, field, read = _FIELDS[name]
        if field in parts[part]:
            raise ConfigError(f"{given} is given twice, under two names.", remedy="Give one of them.")
        parts[part][field] = read(value)
    if isinstance(parts["cache"].get("kv_memory_bytes"), tuple):
        parts["cache"]["kv_memory_by_rank"] = parts["cache"].pop("kv_memory_bytes")
    if "model" not in parts["model"]:
        raise ConfigError("No model is given.", remedy='Name one, e.g. model="demo".')
    return resolve_engine_config(
        EngineConfig(
            model=ModelSource(**parts["model"]),
            cache=CacheConfig(**parts["cache"]),
            scheduler=SchedulerConfig(**parts["scheduler"]),
            parallel=ParallelConfig(**parts["parallel"]),
        )
    )


_NUMBERS = {
    "max_model_len": int,
    "seed": int,
    "block_size": int,
    "num_blocks_override": int,
    "retention_interval": int,
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "max_chunk_tokens": int,
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "data_parallel_size": int,
    "memory_utilization": float,
    "kv_cache_metrics_sample": float,
}


def _check_kind(given: str, name: str, value: Any) -> None:
    """Refuse a value that is no number where one is needed, or not one of the words that are known."""
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{given} is {value!r}.", remedy=f"It must be one of {', '.join(_CHOICES[name])}.")
    kind = _NUMBERS.get(name)
    if kind is None:
        return
    allowed = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        what = "a number" if kind is float else "a whole number"
        raise ConfigError(f"{given} is {value!r}.", remedy=f"It must be {what}.")


def _unknown(given: str) -> ConfigError:
    known = sorted([*_FIELDS, *_ALIASES, *_WITHOUT_EFFECT])
    near = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"Known are: {', '.join(sorted(_FIELDS))}."
    return ConfigError(f"{given} is no option of an engine.", remedy=remedy)
