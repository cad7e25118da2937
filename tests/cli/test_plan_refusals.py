"""Wrong configs and wrong flags of `octavo plan`: one sentence each, exit code 1 or 2 of the command line, no trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import run_octavo
from tests.formats.published import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip

ABSENT = object()

FIELDS: list[tuple[str, Any, str]] = [
    ("num_attention_heads", 0, "num_attention_heads"), ("num_attention_heads", -8, "num_attention_heads"),
    ("num_attention_heads", "eight", "num_attention_heads"), ("num_attention_heads", 8.5, "num_attention_heads"),
    ("num_key_value_heads", 3, "do not divide 8 query heads"), ("num_key_value_heads", 0, "num_key_value_heads"),
    ("num_key_value_heads", -1, "num_key_value_heads"), ("num_key_value_heads", [4], "num_key_value_heads"),
    ("num_hidden_layers", 0, "num_hidden_layers"), ("num_hidden_layers", 10**9, "num_hidden_layers"),
    ("num_hidden_layers", True, "num_hidden_layers"),
    ("hidden_size", 0, "hidden_size"), ("hidden_size", -512, "hidden_size"), ("hidden_size", {}, "hidden_size"),
    ("hidden_size", 10**30, "hidden_size"),
    ("head_dim", "wide", "head_dim"), ("head_dim", 10**12, "head_dim"),
    ("vocab_size", -1, "vocab_size"), ("vocab_size", "many", "vocab_size"),
    ("max_position_embeddings", -5, "max_position_embeddings"), ("max_position_embeddings", "long", "max_position"),
    ("torch_dtype", "int3", "dtype"), ("torch_dtype", 16, "dtype"),
    ("model_type", ABSENT, "model_type"), ("model_type", "no-such", "no-such"), ("model_type", 7, "model_type"),
    ("layer_types", ["full_attention"], "layer_types"), ("layer_types", "full", "layer_types"),
    ("layer_types", [3, 4, 5, 6], "layer_types"),
]  # fmt: skip
"""Field, its value, and what the refusal must name."""

FLAGS: list[tuple[list[str], str]] = [
    (["--block-size", "0"], "--block-size"), (["--block-size", "9999999"], "--block-size"),
    (["--kv-memory", "12 bananas"], "bananas"), (["--kv-memory", "-1GiB"], "-1GiB"),
    (["--kv-memory", "1GiB,2GiB,3GiB"], "--kv-memory"), (["--gpu", "h200", "--memory", "1GiB"], "--gpu"),
    (["--kv-memory", "1GiB", "--max-model-len", "0"], "--max-model-len"), (["--max-model-len", "auto"], "auto"),
    (["--memory-utilization", "1.5", "--memory", "9GiB"], "--memory-utilization"),
    (["--memory-utilization", "nan", "--memory", "9GiB"], "--memory-utilization"),
    (["-tp", "0"], "--tensor-parallel-size"), (["-pp", "0"], "--pipeline-parallel-size"),
    (["-pp", "5", "--kv-memory", "1GiB"], "4 layers"),
    (["-pp", "2", "--pipeline-layers", "1,2", "--kv-memory", "1GiB"], "4"), (["--lengths", "0"], "--lengths"),
    (["--lengths", "12x"], "12x"), (["--dtype", "int4"], "--dtype"), (["--kv-cache-dtype", "int3"], "--kv-cache-dtype"),
    (["--compare", "colour=1"], "--compare"), (["--plot", "x.bmp"], "--plot"), (["--gpu", "h2000"], "h2000"),
    (["--weights", "1GiB", "--gpu", "h200x0"], "--gpu"), (["--max-num-batched-tokens", "-3"], "batched-tokens"),
    (["--api-key", "k", "--kv-memory", "1GiB"], "--api-key"), (["--model", ""], "empty"),
    (["--num-blocks-override", "0"], "num-"), (["--max-chunk-tokens", "0"], "--max-chunk-tokens"),
]  # fmt: skip


def told(done: Any) -> str:
    """The refusal, which is one line, or what the command line says of a flag."""
    assert done.code in (1, 2)
    assert "Traceback" not in done.err
    assert not done.out, "nothing was planned"
    return str(done.err)


@pytest.mark.parametrize(("field", "value", "named"), FIELDS)
def test_a_wrong_field_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str, value: Any, named: str
) -> None:
    config = {name: old for name, old in (LLAMA | {field: value}).items() if old is not ABSENT}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for more in (["--kv-memory", "1GiB"], ["--memory", "8GiB"]):
        assert named in told(run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), *more]))


def test_who_is_told_of_an_impossible_value_is_not_sent_for_another_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value, remedy in (
        ("num_hidden_layers", -4, "Correct the config"),
        ("index_head_dim", 8, "another model"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | {name: value}))
        assert remedy in told(run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), "--kv-memory", "1GiB"]))


def test_a_long_value_is_shortened_and_the_reason_is_still_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = LLAMA | {"num_hidden_layers": 40, "layer_types": ["hybrid_sliding"] * 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = " ".join(
        told(run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), "--kv-memory", "1GiB"])).split()
    )
    assert "layer_types = ['hybrid_sliding', 'hybrid_sliding', 'hybrid_sliding', 'hybr ...: layers of type" in said


@pytest.mark.parametrize(("flags", "named"), FLAGS)
def test_a_wrong_flag_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], named: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert named in told(run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), *flags]))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"model_type": "llama"', "\x00\x01", "NaN"])
def test_what_is_no_config_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in told(
        run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), "--kv-memory", "1GiB"])
    )


def test_a_composite_config_without_its_text_part_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = {**CONFIGS["Gemma-3-27b"], "text_config": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "text_config" in told(
        run_octavo(monkeypatch, ["plan", str(tmp_path / "config.json"), "--kv-memory", "1GiB"])
    )
