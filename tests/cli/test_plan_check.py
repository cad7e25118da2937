"""The plan beside what a started engine allocates: 0 bytes between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.plan_check import check
from octavo.errors import ConfigError
from octavo.planning.library import ask
from tests.cli.terminal import run_octavo

TOY: dict[str, Any] = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "sliding_window": 40, "vocab_size": 256, "max_position_embeddings": 512, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"],
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 8, "max_model_len": 128},
        {"dtype": "float32"},
        {"num_blocks_override": 99, "max_model_len": 128},
    ],
)
def test_the_cache_differs_by_no_byte(model: Path, options: dict[str, Any]) -> None:
    asked = ask(model, kv_memory="3MiB", **options)
    found = check(asked, str(model), has_weights=False)
    assert found.planned_bytes == found.found_bytes
    assert found.agrees
    assert found.found[0].num_storages == len(asked.plan.configs[0].tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2, "pipeline_layers": [5, 2], "kv_memory": ["3MiB", "1MiB"]},
    ],
)
def test_every_rank_of_several_is_the_planned_one(model: Path, options: dict[str, Any]) -> None:
    asked = ask(model, **({"kv_memory": "2MiB", "max_model_len": 128} | options))
    found = check(asked, str(model), has_weights=False)
    assert [rank.rank for rank in found.found] == [0, 1]
    assert [rank.storage_bytes for rank in found.found] == [rank.pool_bytes for rank in asked.plan.figures.ranks]
    assert found.agrees


@pytest.mark.slow
def test_the_command_starts_the_engine_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    arguments = ["plan", str(model), "--kv-memory", "2MiB", "--check"]
    told = run_octavo(monkeypatch, arguments)
    assert told.code == 0
    assert "The plan is what was allocated." in told.out
    made = run_octavo(monkeypatch, [*arguments, "--json"]).document["check"]
    assert (made["difference_bytes"], made["agrees"]) == (0, True)
    assert made["resident_bytes_after"] > 0


def test_what_cannot_be_started_here_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="can be planned but not run yet"):
        check(ask(model, kv_memory="3MiB", kv_cache_dtype="fp8"), str(model), has_weights=False)
    with pytest.raises(ConfigError, match="does not fit"):
        check(ask(model, kv_memory="4KiB"), str(model), has_weights=False)
