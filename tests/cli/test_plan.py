"""The flags of `octavo plan`."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from octavo.formats.demo import DEMO_MODELS
from octavo.planning.cache_dtype import FORMATS
from tests.cli.terminal import run_octavo


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told: dict[str, Any] = {}
    monkeypatch.setattr(importlib.import_module("octavo.cli.planning"), "run", told.update)
    return told


def test_flags_are_read_with_their_units(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    arguments = (
        "m --kv-memory 3.18GiB,16GiB --max-model-len 4K --max-num-batched-tokens 2k --max-num-seqs 8 --block-size 32 "
        "--lengths 1K,8K --pipeline-layers 16,32 -pp 2 -tp 4 --max-in-flight-tokens 16K --weights 15GB "
        "--runtime-memory 2GiB --no-enable-prefix-caching --disable-hybrid-kv-cache-manager --kv-cache-dtype fp8 --json"
    )
    assert run_octavo(monkeypatch, ["plan", *arguments.split()]).code == 0
    expected = {
        "model": "m", "kv_memory": (int(3.18 * 2**30), 16 * 2**30), "max_model_len": 4096, "block_size": 32,
        "max_num_batched_tokens": 2000, "max_num_seqs": 8, "lengths": (1024, 8192), "pipeline_layers": (16, 32),
        "pipeline_parallel_size": 2, "tensor_parallel_size": 4, "max_in_flight_tokens": 16384,
        "weights": 15 * 10**9, "runtime_memory": 2 * 2**30, "enable_prefix_caching": False, "hybrid": False,
        "kv_cache_dtype": "fp8", "json": True,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected


def test_the_names_of_vllm_work(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    arguments = "--model m --kv-cache-memory-bytes 1GiB --gpu-memory-utilization 0.8 --num-gpu-blocks-override 100"
    assert run_octavo(monkeypatch, ["plan", *arguments.split()]).code == 0
    assert (given["model_option"], given["kv_memory"], given["num_blocks_override"]) == ("m", (2**30,), 100)
    assert given["memory_utilization"] == 0.8


def test_a_size_that_is_none_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_octavo(monkeypatch, ["plan", "m", "--kv-memory", "1Gib,x"]).code == 2


def test_the_help_names_each_demo_model_and_each_format_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    told = " ".join(run_octavo(monkeypatch, ["plan", "--help"]).out.split())
    words = set(re.findall(r"[\w-]+", told))
    assert set(DEMO_MODELS) <= words
    # One name of each format; `FORMATS` has further names of the same.
    assert {cache_format.quantization or cache_format.dtype for cache_format in FORMATS.values()} <= words
