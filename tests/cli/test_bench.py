"""The flags of `octavo bench`."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests.cli.terminal import run_octavo


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command was told, instead of running it."""
    told: dict[str, Any] = {}
    monkeypatch.setattr("octavo.cli.bench_offline.run", told.update)
    return told


def test_engine_flags_are_those_of_generate(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    arguments = "--workload w.json --model m --kv-cache-memory-bytes 1GiB --max-model-len 4K --block-size 32 --json -v"
    assert run_octavo(monkeypatch, ["bench", "offline", *arguments.split()]).code == 0
    expected = {
        "workload": "w.json", "model": "m", "kv_memory": (2**30,), "max_model_len": 4096, "block_size": 32,
        "json": True,
        "verbose": True, "dtype": "auto", "enable_prefix_caching": True,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    engine_flags = importlib.import_module("octavo.cli.startup").ENGINE_FLAGS
    assert set(engine_flags) <= set(given)


def test_help_names_the_commands_and_defines_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "offline" in run_octavo(monkeypatch, ["bench", "--help"]).out
    text = run_octavo(monkeypatch, ["bench", "offline", "--help"]).out
    for name in ("--workload", "first_token_s", "latency_s", "token_s", "start_to_first_token_s", "ttft_s"):
        assert re.search(rf"(?<![\w-]){name}\b", text), name


@pytest.mark.parametrize("arguments", [["bench", "offlin"], ["bench", "offline"], ["bench", "offline", "--bogus"]])
def test_wrong_usage_is_exit_code_two(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    said = run_octavo(monkeypatch, arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
