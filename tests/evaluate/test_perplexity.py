"""Perplexity equals a direct computation with transformers: on a toy in many windows, on real models as recorded."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from octavo.engine.llm import LLM
from octavo.evaluate.perplexity import perplexity
from octavo.evaluate.windows import lay_windows
from tests.evaluate.direct import direct_windows
from tests.evaluate.recorded import MODELS, ask, load
from tests.parity.tiny import HYBRID, build_model

TOLERANCE = 1e-4
"""Relative, of the perplexity."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, torch.nn.Module]]:
    folder: Path = tmp_path_factory.mktemp("toy")
    model = build_model(folder, HYBRID)
    with LLM(str(folder), dtype="float32", kv_memory="4MiB", max_num_batched_tokens=70) as llm:
        yield llm, model


@pytest.mark.slow
@pytest.mark.parametrize(("window", "stride"), [(None, None), (64, 64), (64, 63), (64, 16), (7, 1), (255, 100)])
def test_a_toy_equals_transformers(toy: tuple[LLM, torch.nn.Module], window: int | None, stride: int | None) -> None:
    llm, model = toy
    token_ids = [3 + index * index * 7 % 311 for index in range(260)]
    text = " ".join(f"w{token_id}" for token_id in token_ids)
    told: list[int] = []
    result = perplexity(llm, text, window=window, stride=stride, on_progress=told.append)
    windows = lay_windows(260, [], longest=255, window=window, stride=stride)
    spans, num = list(windows.spans()), windows.num_scored
    expected = -sum(direct_windows(model, token_ids, spans, [])) / num
    assert result.nats_per_token == pytest.approx(expected, abs=TOLERANCE)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=TOLERANCE)
    assert (result.num_tokens, result.num_windows, told[-1]) == (num, len(spans), num)
    assert told == sorted(set(told))
    assert result.num_bytes == len(text) - sum(len(text.split()[place]) for place in windows.unscored)
    assert result.bits_per_byte * result.num_bytes == pytest.approx(expected * num / math.log(2), rel=TOLERANCE)
    assert perplexity(llm, token_ids, window=window, stride=stride).num_bytes == result.num_bytes
    assert llm.stats().num_used_blocks == 0


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_equals_what_transformers_said(name: str) -> None:
    recording = load(name)
    with LLM(name, dtype="float32", kv_memory="64MiB", max_model_len=512) as llm:
        assert list(llm.get_tokenizer().prefix_ids) == recording.marks
        found = perplexity(llm, recording.token_ids, window=recording.window, stride=recording.stride)
    assert found.num_windows == len(recording.sums) > 2
    assert found.num_tokens == len(recording.token_ids) - (not recording.marks)
    assert found.nats_per_token == pytest.approx(-sum(recording.sums) / found.num_tokens, abs=TOLERANCE)
    assert found.perplexity == pytest.approx(math.exp(-sum(recording.sums) / found.num_tokens), rel=TOLERANCE)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_text_equals_transformers_now(name: str) -> None:
    text = Path(sysconfig.get_path("stdlib"), "LICENSE.txt").read_text(encoding="utf-8")
    with LLM(name, dtype="float32", kv_memory="512MiB", max_model_len=2049) as llm:
        found = perplexity(llm, text, window=1000, stride=600)
        token_ids, marks = llm.get_tokenizer().encode(text, add_special_tokens=False), llm.get_tokenizer().prefix_ids
    recording = load(name)
    sums = ask(name, token_ids, list(marks), window=1000, stride=600)
    assert found.perplexity == pytest.approx(math.exp(-sum(sums) / found.num_tokens), rel=TOLERANCE)
    told = ask(name, recording.token_ids, recording.marks, window=recording.window, stride=recording.stride)
    assert told == pytest.approx(recording.sums, rel=1e-5), "what was recorded is still what transformers says"
