"""Every causal-LM type of the installed transformers runs as transformers does, or is refused by a property."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.attention.backend import AttentionLayer
from octavo.models.decoder_program import FewTokens
from tests.models.walk.outcome import walk
from tests.models.walk.sizes import VARIANTS
from tests.models.walk.tiny_model import model_types
from tools.models_page import PAGE, RUNS, page_rows, row

SAMPLE = (
    "llama", "mistral", "mistral-without-window", "mixtral", "qwen2", "qwen2-without-window", "qwen2_moe", "qwen3",
    "qwen3_moe", "qwen3_next", "gemma", "gemma2-low-soft-cap", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text",
    "phi3", "olmo2", "olmo3", "olmoe", "cohere2", "granite", "granitemoehybrid", "starcoder2", "gpt_oss", "smollm3",
    "gpt_neox", "gpt2", "gpt_bigcode", "stablelm-partial-rotary", "exaone4", "ministral", "glm4", "nemotron",
    "minicpm3", "llama4_text", "deepseek_v3", "jamba", "falcon", "bloom", "opt", "phimoe", "moshi",
)  # fmt: skip
"""Families that people use, and one type for each way to be odd; the others are `long`."""

LEAST_RUNNING = 140

USED = """
llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 olmo2 olmo3 olmoe cohere2 granite
starcoder2 gpt_oss smollm3 gpt_neox gpt2 stablelm exaone4 ministral glm4 nemotron minicpm3 llama4_text deepseek_v3
qwen3_next jamba granitemoehybrid falcon_h1 bamba falcon bloom mpt gemma3n_text gemma4_text
"""
"""Families that people use: a page that refuses one of them is wrong, whatever the reason it gives."""


def check(name: str, folder: Path) -> None:
    outcome = walk(name, folder)
    if name in VARIANTS:
        assert outcome.runs, outcome.refusal
    else:
        assert page_rows()[name] == row(outcome), "run `make models`"


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_types_runs_or_is_refused_as_the_page_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in (*model_types(), *VARIANTS) if name not in SAMPLE])
def test_every_other_type_runs_or_is_refused_as_the_page_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_the_page_has_every_type_of_the_installed_transformers() -> None:
    assert list(page_rows()) == sorted(model_types())


def test_families_that_people_use_run() -> None:
    assert [name for name in USED.split() if RUNS not in page_rows()[name]] == []


def test_the_page_counts_what_runs() -> None:
    rows = page_rows().values()
    num_runs = sum(RUNS in line for line in rows)
    assert f"{len(rows)} types: {num_runs} run, {len(rows) - num_runs} are refused." in PAGE.read_text("utf-8")
    assert num_runs >= LEAST_RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3_text", "mistral"])
def test_a_window_off_by_one_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = AttentionLayer.__init__

    def planted(self: AttentionLayer, layer_name: str, **fields: Any) -> None:
        window = fields.get("window")
        original(self, layer_name, **(fields | {"window": window + 1 if window else window}))

    monkeypatch.setattr(AttentionLayer, "__init__", planted)
    with pytest.raises(AssertionError, match="chosen by a margin"):
        walk(name, tmp_path)


@pytest.mark.slow
def test_a_layer_that_goes_past_the_cache_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = AttentionLayer.forward

    def uncounted(self: AttentionLayer, *args: Any) -> Any:
        output = original(self, *args)
        self.num_calls = 0 if self.name == "layers.2" else self.num_calls
        return output

    monkeypatch.setattr(AttentionLayer, "forward", uncounted)
    monkeypatch.setattr(FewTokens, "program", lambda self, num_tokens: None)
    with pytest.raises(AssertionError, match=r"'layers.2', 0"):
        walk("llama", tmp_path)
