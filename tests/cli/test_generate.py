"""The flags of `octavo generate`: all those of its contract, with its defaults, under both names."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.cli.terminal import run_octavo

FLAGS = [
    "--model", "--prompt-file", "--chat", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
    "--presence-penalty", "--frequency-penalty", "--seed", "--stop", "--max-tokens", "--n", "--kv-memory",
    "--kv-cache-memory-bytes", "--memory-utilization", "--gpu-memory-utilization", "--max-model-len",
    "--max-num-batched-tokens", "--max-num-seqs", "--block-size", "--dtype", "--no-enable-prefix-caching",
    "--enable-prefix-caching", "--json", "-v", "--verbose", "--tokenizer", "--revision", "--trust-remote-code",
    "--load-format", "--num-gpu-blocks-override", "--logprobs", "--ignore-eos", "--cache-salt",
    "--tensor-parallel-size",
]  # fmt: skip


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command was told, instead of running it."""
    told: dict[str, Any] = {}
    monkeypatch.setattr("octavo.cli.generation.run", told.update)
    return told


def test_the_default_is_greedy_with_128_tokens_of_the_demo_model(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    assert run_octavo(monkeypatch, ["generate", "hi"]).code == 0
    assert (given["model"], given["prompts"]) == ("demo", ["hi"])
    assert (given["temperature"], given["max_tokens"], given["n"]) == (0.0, 128, 1)
    assert given["enable_prefix_caching"] is True
    assert given["kv_memory"] is None


def test_flags_are_read_with_their_units(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    arguments = (
        "--model m --kv-memory 1GiB --max-model-len 4K --max-num-batched-tokens 2k --max-num-seqs 8 --block-size 32 "
        "--dtype float32 --no-enable-prefix-caching --temperature 0.5 --top-k 5 --top-p 0.9 --min-p 0.1 "
        "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3 --seed 7 --stop a --stop b "
        "--max-tokens 1k --n 2 --stop-token-id 5 --logprobs 3 --chat --json -v x y"
    )
    assert run_octavo(monkeypatch, ["generate", *arguments.split()]).code == 0
    expected = {
        "prompts": ["x", "y"], "model": "m", "kv_memory": (2**30,), "max_model_len": 4096,
        "max_num_batched_tokens": 2000,
        "max_num_seqs": 8, "block_size": 32, "dtype": "float32", "enable_prefix_caching": False, "temperature": 0.5,
        "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "seed": 7, "stop": ["a", "b"], "max_tokens": 1000, "n": 2, "stop_token_ids": [5],
        "logprobs": 3, "chat": True, "json": True, "verbose": True,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected


def test_the_names_of_vllm_work(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    arguments = (
        "--kv-cache-memory-bytes 1000 --gpu-memory-utilization 0.25 --num-gpu-blocks-override 9 --max-model-len -1"
    )
    assert run_octavo(monkeypatch, ["generate", *arguments.split(), "x"]).code == 0
    assert (given["kv_memory"], given["memory_utilization"]) == ((1000,), 0.25)
    assert (given["num_blocks_override"], given["max_model_len"]) == (9, -1)


@pytest.mark.parametrize("columns", ["80", "149", "150"])
def test_help_names_every_flag_and_defines_every_figure(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = run_octavo(monkeypatch, ["generate", "--help"]).out
    assert [flag for flag in FLAGS if flag not in text] == []
    figures = importlib.import_module("octavo.engine.figures").Figures.__struct_fields__
    undefined = set(figures) - {"prompt_tokens", "output_tokens", "peak_rss_bytes"}
    assert [figure for figure in undefined if figure not in text] == []


@pytest.mark.parametrize("arguments", ["--block-size x", "--kv-memory big", "--temperature hot", "--top-k 1.5"])
def test_a_value_that_cannot_be_read_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    said = run_octavo(monkeypatch, ["generate", *arguments.split(), "x"])
    assert (said.code, said.out) == (2, "")
    assert arguments.split()[0] in said.err
