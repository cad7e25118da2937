"""Every type that runs, runs in two pipeline stages as transformers does, or is refused by what is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.walk.outcome import walk
from tests.thread_executor import one_at_a_time
from tools.models_page import RUNS, page_rows

NOT_DIVIDED = {
    "gemma3n": "reads the cache of layer 0, which lies in another pipeline stage",
    "gemma3n_text": "reads the cache of layer 0, which lies in another pipeline stage",
    "gemma4": "reads the cache of layer 0, which lies in another pipeline stage",
    "gemma4_text": "reads the cache of layer 0, which lies in another pipeline stage",
    "gemma4_text-without-sharing": "they read the embedding beside the hidden states",
    "longcat_flash": "it keeps them in no lists of 4, where there must be one",
}
"""Types of which one rank computes the whole, and why."""

SAMPLE = (
    "gemma2", "mixtral", "qwen3_moe", "gpt_oss", "jamba", "qwen3_next", "falcon_h1", "nanochat",
    "gemma4_text-without-sharing", "gemma3n_text",
)  # fmt: skip
"""Windows, experts, states, both in one layer, a norm that runs twice, and what is refused."""

DIVIDED_TWICE = (
    "gemma2",
    "mixtral",
    "llama",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
    "olmo3",
    "phi3",
    "cohere2",
    "glm4",
)
"""Also each layer over two ranks; the first two in every full run."""

RUNNING = [name for name, line in page_rows().items() if RUNS in line]


def check(name: str, folder: Path, num_stages: int) -> None:
    outcome = walk(name, folder, num_stages=num_stages)
    if name in NOT_DIVIDED:
        assert NOT_DIVIDED[name] in outcome.refusal
    else:
        assert outcome.runs, outcome.refusal


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_types_in_two_stages(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in RUNNING if name not in SAMPLE])
def test_every_other_type_in_two_stages(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SAMPLE if name not in NOT_DIVIDED])
def test_a_sample_of_types_in_three_stages(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 3)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if index > 1 else pytest.mark.slow)
        for index, name in enumerate(DIVIDED_TWICE)
    ],
)
def test_two_stages_of_two_ranks_each(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_at_a_time(monkeypatch)
    outcome = walk(name, tmp_path, num_stages=2, num_ranks=2)
    assert outcome.runs, outcome.refusal
