"""Every type, with each layer divided over two ranks, gives transformers' tokens or is refused by a property."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.walk.outcome import Outcome, walk
from tests.models.walk.sizes import VARIANTS
from tests.models.walk.tiny_model import model_types
from tests.thread_executor import one_at_a_time
from tools.divided_page import NUM_RANKS, PAGE, page_refusals, refusal_of, render, types_to_divide

SAMPLE = (
    "gemma2", "gpt_oss", "qwen3_next", "olmo_hybrid", "gemma4_text", "deepseek_v3", "mamba", "bloom", "stablelm",
    "sarvam_moe",
)  # fmt: skip
"""Windows, experts and sinks, states, shared caches, latents; and what is refused. Others of `make test` are
in tests/models/parallel/test_division.py."""

NOT_DIVIDED = {
    "gemma4_text-experts": "it has 13 kinds of weights whose order is not known",
    "gemma4_text-wide-mlp": "it has 14 kinds of weights whose order is not known",
}
"""Variants that are refused though their types run."""

USED = """
llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi3 olmo2 olmo3 olmoe cohere2 granite
starcoder2 gpt_oss smollm3 exaone4 ministral glm4 nemotron minicpm3 llama4_text deepseek_v3 qwen3_next jamba
granitemoehybrid falcon_h1 bamba gemma3n_text gemma4_text
"""
"""Families that people divide: a page that refuses one of them is wrong, whatever the reason it gives."""


def divided(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    one_at_a_time(monkeypatch)
    return walk(name, folder, num_ranks=NUM_RANKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_types_on_two_ranks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_refusals()[name] == refusal_of(divided(name, tmp_path, monkeypatch)), "run `make divided`"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in types_to_divide() if name not in SAMPLE])
def test_every_other_type_on_two_ranks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_refusals()[name] == refusal_of(divided(name, tmp_path, monkeypatch)), "run `make divided`"


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_as_its_type(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = divided(name, tmp_path, monkeypatch)
    if name in NOT_DIVIDED:
        assert NOT_DIVIDED[name] in outcome.refusal
    else:
        refusal = page_refusals()[name.partition("-")[0]]
        assert bool(outcome.refusal) == bool(refusal), outcome.refusal or refusal


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in model_types() if name not in types_to_divide()])
def test_what_one_rank_refuses_two_refuse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert divided(name, tmp_path, monkeypatch).refusal


def test_the_page_has_every_type_that_runs_on_one_rank() -> None:
    assert sorted(page_refusals()) == sorted(types_to_divide())


def test_the_page_is_what_its_own_lines_make() -> None:
    assert PAGE.read_text("utf-8") == render(page_refusals()), "run `make divided`"


def test_families_that_people_use_are_divided() -> None:
    assert [name for name in USED.split() if page_refusals()[name]] == []
