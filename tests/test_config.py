"""Sizes with units, the environment, and the checks of what the user asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import (
    CacheConfig,
    EngineConfig,
    ModelSource,
    ParallelConfig,
    SchedulerConfig,
    drop_thread_limit,
    format_bytes,
    layer_name,
    parse_bytes,
    rank_environment,
    read_environment,
    resolve_engine_config,
)
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1GiB", 2**30),
        ("1GB", 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512mib", 2**29),
        ("64 KiB", 2**16),
        ("2TiB", 2**41),
        ("1PiB", 2**50),
        ("1.5pb", 15 * 10**14),
        ("123", 123),
        ("1_000B", 1000),
        (77, 77),
        (0, 0),
    ],
)
def test_a_size_has_a_unit_and_gb_is_not_gib(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "1 potato", "-1", "-5MiB", "1GiBs", "nan", -3])
def test_what_is_no_size_is_refused_with_an_example(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"is not a size in bytes\. .*1GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["8192PiB", "9000PiB", "99999999999999TiB", "1e400", "inf", 2**63, 10**400])
def test_a_size_beyond_what_can_be_counted_is_refused_as_too_large(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"is too large\. It must be less than 8192 PiB"):
        parse_bytes(text)
    assert parse_bytes(2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("value", [1.5, True, None, b"1GiB", ["1GiB"], 2.0])
def test_a_size_of_another_kind_is_refused_with_an_example(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a size in bytes\. .*1GiB"):
        parse_bytes(value)


def test_sizes_are_printed_in_binary_units() -> None:
    assert format_bytes(2**30) == "1.00 GiB"
    assert format_bytes(16384) == "16.00 KiB"
    assert format_bytes(12) == "12 B"
    assert format_bytes(300 * 2**20) == "300.0 MiB"


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_reads_back_to_within_a_percent(num_bytes: int) -> None:
    again = parse_bytes(format_bytes(num_bytes))
    assert abs(again - num_bytes) <= max(1, num_bytes // 100)


def test_the_environment_is_read_once_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "3")
    monkeypatch.setenv("OCTAVO_ATTENTION_BACKEND", "torch_reference")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    environment = read_environment()
    assert (environment.cache_dir, environment.num_threads) == (tmp_path, 3)
    assert (environment.attention_backend, environment.ray_address) == ("torch_reference", "10.0.0.1:6379")


def test_a_rank_on_another_machine_sees_what_is_ours_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    environment = rank_environment()
    assert environment["OCTAVO_NUM_THREADS"] == "3"
    assert Path(environment["PYTHONPATH"].split(os.pathsep)[-1], "octavo").is_dir()
    assert not {"SECRET_OF_THE_USER", "HOME", "PATH"} & environment.keys()


def test_a_thread_limit_that_is_not_the_users_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    drop_thread_limit("1")
    assert os.environ["OMP_NUM_THREADS"] == "4"
    drop_thread_limit("4")
    assert "OMP_NUM_THREADS" not in os.environ
    drop_thread_limit("4")


def test_a_bad_thread_count_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="OCTAVO_NUM_THREADS is 'many'"):
        read_environment()


def _config(**parts: Any) -> EngineConfig:
    return EngineConfig(model=parts.pop("model", ModelSource(model="demo")), **parts)


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (_config(model=ModelSource(model="demo", dtype="int4")), "--dtype is int4"),
        (_config(model=ModelSource(model="demo", max_model_len=0)), "--max-model-len is 0"),
        (_config(cache=CacheConfig(block_size=0)), "--block-size is 0"),
        (_config(cache=CacheConfig(memory_utilization=1.5)), "--memory-utilization is 1.5"),
        (_config(cache=CacheConfig(kv_memory_bytes=0)), "--kv-memory is 0"),
        (_config(cache=CacheConfig(num_blocks_override=1)), "--num-blocks-override is 1"),
        (_config(scheduler=SchedulerConfig(max_num_batched_tokens=0)), "--max-num-batched-tokens is 0"),
        (_config(scheduler=SchedulerConfig(max_num_seqs=0)), "--max-num-seqs is 0"),
        (_config(parallel=ParallelConfig(tensor_parallel_size=0)), "--tensor-parallel-size is 0"),
        (_config(model=ModelSource(model="demo", max_model_len=1)), "--max-model-len is 1"),
        (_config(model=ModelSource(model="demo", max_model_len=2**31)), "--max-model-len is 2147483648"),
        (_config(cache=CacheConfig(num_blocks_override=2**31)), "--num-blocks-override is 2147483648"),
        (_config(scheduler=SchedulerConfig(max_num_batched_tokens=2**24 + 1)), "--max-num-batched-tokens is 16777217"),
        (_config(scheduler=SchedulerConfig(max_num_seqs=65537)), "--max-num-seqs is 65537"),
        (_config(scheduler=SchedulerConfig(max_chunk_tokens=2**24 + 1)), "--max-chunk-tokens is 16777217"),
        (_config(parallel=ParallelConfig(tensor_parallel_size=4097)), "--tensor-parallel-size is 4097"),
        (_config(parallel=ParallelConfig(pipeline_parallel_size=4097)), "--pipeline-parallel-size is 4097"),
    ],
)
def test_an_impossible_flag_is_refused_with_what_it_may_be(config: EngineConfig, flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag}\. It must be "):
        resolve_engine_config(config)


@pytest.mark.parametrize("model", ["", "  ", 5, None, True, Path("demo"), ["demo"]])
def test_a_model_must_be_named(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"^(No model is given|--model is .*)\. .*demo"):
        resolve_engine_config(_config(model=ModelSource(model=model)))


def test_the_largest_limits_are_possible() -> None:
    scheduler = SchedulerConfig(max_num_batched_tokens=2**24, max_num_seqs=65536, max_chunk_tokens=2**24)
    config = _config(model=ModelSource(model="demo", max_model_len=2**31 - 1), scheduler=scheduler)
    assert resolve_engine_config(config) is config


def test_a_possible_config_is_returned_unchanged() -> None:
    config = _config(model=ModelSource(model="demo", max_model_len=-1))
    assert resolve_engine_config(config) is config
    assert ParallelConfig(tensor_parallel_size=2, pipeline_parallel_size=3).world_size == 6


def test_layers_are_named_by_their_index() -> None:
    assert layer_name(17) == "layers.17"
