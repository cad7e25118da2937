"""Flat keywords reach the part of the config they belong to, under either name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.engine.engine_args import _ALIASES, _FIELDS, _WITHOUT_EFFECT, EngineOptions, engine_config_from
from octavo.errors import ConfigError


def test_defaults_are_those_of_the_config() -> None:
    assert engine_config_from({"model": "demo"}) == EngineConfig(model=ModelSource(model="demo"))


def test_keywords_reach_their_part() -> None:
    config = engine_config_from(
        {
            "model": "m",
            "dtype": "float32",
            "max_model_len": 99,
            "block_size": 8,
            "kv_memory": "1GiB",
            "enable_prefix_caching": False,
            "retention_interval": 64,
            "max_num_seqs": 3,
            "scheduling_policy": "priority",
            "tensor_parallel_size": 2,
        }
    )
    assert (config.model.model, config.model.dtype, config.model.max_model_len) == ("m", "float32", 99)
    assert (config.cache.block_size, config.cache.kv_memory_bytes) == (8, 2**30)
    assert not config.cache.enable_prefix_caching
    assert config.cache.retention_interval == 64
    assert (config.scheduler.max_num_seqs, config.scheduler.policy) == (3, "priority")
    assert config.parallel.tensor_parallel_size == 2


def test_the_names_of_vllm_work() -> None:
    config = engine_config_from(
        {
            "model": "m",
            "kv_cache_memory_bytes": 12345,
            "gpu_memory_utilization": 0.25,
            "num_gpu_blocks_override": 7,
            "enforce_eager": True,
        }
    )
    assert (config.cache.kv_memory_bytes, config.cache.memory_utilization) == (12345, 0.25)
    assert config.cache.num_blocks_override == 7


def test_none_takes_the_default() -> None:
    assert engine_config_from({"model": "m", "block_size": None, "seed": None}) == engine_config_from({"model": "m"})


def test_a_dtype_object_is_read_by_its_name() -> None:
    class Dtype:
        def __str__(self) -> str:
            return "torch.float32"

    assert engine_config_from({"model": "m", "dtype": Dtype()}).model.dtype == "float32"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": "m", "max_model_length": 5}, r"max_model_length is no option.*max_model_len"),
        ({"model": "m", "xyzzy": 5}, r"xyzzy is no option.*Known are: .*block_size"),
        ({"model": "m", "kv_memory": 1, "kv_cache_memory_bytes": 2}, "given twice, under two names"),
        ({"block_size": 16}, "No model is given"),
        ({"model": ""}, "No model is given"),
        ({"model": 5}, r"model is 5. It must be a text"),
        ({"model": "m", "kv_memory": 1.5}, r"1\.5 is not a size in bytes"),
        ({"model": "m", "block_size": "16"}, "block_size is '16'. It must be a whole number"),
        ({"model": "m", "max_num_seqs": 1.5}, "max_num_seqs is 1.5. It must be a whole number"),
        ({"model": "m", "block_size": True}, "block_size is True"),
        ({"model": "m", "memory_utilization": "half"}, "memory_utilization is 'half'. It must be a number"),
        ({"model": "m", "load_format": "fast"}, "load_format is 'fast'. It must be one of auto, dummy"),
        ({"model": "m", "scheduling_policy": "lifo"}, "one of fcfs, priority"),
        ({"model": "m", "kv_memory": "1 potato"}, "is not a size in bytes"),
        ({"model": "m", "dtype": "int4"}, "--dtype is int4"),
    ],
)
def test_what_cannot_be_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_config_from(keywords)


def test_the_table_names_real_fields_and_the_typed_keywords_are_the_table() -> None:
    parts = {part: {field.name for field in msgspec.structs.fields(kind)} for part, kind in _parts().items()}
    assert all(field in parts[part] for part, field, _ in _FIELDS.values())
    known = {*_FIELDS, *_ALIASES, *_WITHOUT_EFFECT} - {"model", "kv_memory_bytes"}
    assert set(EngineOptions.__annotations__) == known


def _parts() -> dict[str, Any]:
    config = EngineConfig(model=ModelSource(model="m"))
    return {name: type(getattr(config, name)) for name in ("model", "cache", "scheduler", "parallel")}


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    assert engine_config_from({"model": tmp_path}).model.model == str(tmp_path)
