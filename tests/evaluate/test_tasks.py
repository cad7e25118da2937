"""What tasks ask is answered in batches, cut to fit, and as the model says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.engine.llm import LLM
from octavo.errors import RequestError
from octavo.evaluate.tasks import MAX_NEW_TOKENS, TaskModel, sampling_of
from tests.evaluate.direct import direct_logprobs
from tests.parity.tiny import HYBRID, build_model

WORDS = [f"w{3 + 7 * index % 300}" for index in range(150)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskModel, torch.nn.Module]]:
    folder: Path = tmp_path_factory.mktemp("toy")
    model = build_model(folder, HYBRID)
    with LLM(str(folder), dtype="float32", kv_memory="4MiB", max_model_len=65, max_num_batched_tokens=64) as llm:
        yield TaskModel(llm), model


@pytest.mark.slow
def test_pairs_are_scored_as_transformers_does(toy: tuple[TaskModel, torch.nn.Module]) -> None:
    tasks, model = toy
    pairs = [(tasks.encode(" ".join(WORDS[n : 2 * n])), tasks.encode(" ".join(WORDS[:3]))) for n in (1, 5, 20)]
    for (context, continuation), score in zip(pairs, tasks.score_pairs(pairs), strict=True):
        assert score.logprobs == pytest.approx(direct_logprobs(model, context + continuation)[-3:], abs=1e-4)
    long = tasks.encode(" ".join(WORDS))
    assert tasks.max_length == 64
    (cut,) = tasks.score_pairs([(long, [5, 6])])
    assert cut.logprobs == pytest.approx(direct_logprobs(model, [*long, 5, 6][-64:])[-2:], abs=1e-4)
    with pytest.raises(RequestError, match="64 tokens is to be scored after -86 of them"):
        tasks.score_pairs([([5], long)])


@pytest.mark.slow
def test_a_whole_text_is_scored_once_in_windows(toy: tuple[TaskModel, torch.nn.Module]) -> None:
    tasks, model = toy
    short, long = " ".join(WORDS[:9]), " ".join(WORDS)
    token_ids = [2, *tasks.encode(long)]
    # 151 tokens: 64, then 63 more behind the last of those, then the last 24 behind as many as fit.
    expected = [
        sum(direct_logprobs(model, token_ids[:10])),
        sum(direct_logprobs(model, token_ids[:64]))
        + sum(direct_logprobs(model, token_ids[63:127]))
        + sum(direct_logprobs(model, token_ids[87:])[-24:]),
    ]
    assert tasks.score_texts([short, long, ""]) == pytest.approx([*expected, 0.0], abs=1e-3)


@pytest.mark.slow
def test_texts_are_completed_until_a_stop(toy: tuple[TaskModel, torch.nn.Module]) -> None:
    tasks, model = toy
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 1, "pad_token_id": 0}
    for start in range(0, 100, 10):  # until an answer whose third word is a new one
        context = " ".join(WORDS[start : start + 10])
        own = model.generate(torch.tensor([tasks.encode(context)]), **options)
        text = tasks.tokenizer.decode(own[0, 10:].tolist())
        first, second, third, *_ = text.split()
        if third not in (first, second):
            break
    else:
        pytest.fail("all answers repeat themselves")
    arguments: list[dict[str, Any]] = [
        {"max_gen_toks": 8, "do_sample": False, "temperature": 1.0},
        {"max_gen_toks": 8, "until": [f" {third}", ""]},
        {"max_gen_toks": 40, "until": "none"},
    ]
    found = tasks.complete([*[(context, each) for each in arguments[:2]], (" ".join(WORDS), arguments[2])])
    assert found[0].strip() == text
    assert found[1].strip() == " ".join(text.split()[:2])
    alone = tasks.complete([(" ".join(WORDS[-25:]), arguments[2])])
    assert found[2:] == alone, "a context that is too long is cut at its beginning"
    with pytest.raises(RequestError, match=r"max_gen_toks is 65, .* leaves no room"):
        tasks.complete([("w5", {"max_gen_toks": 65})])


@pytest.mark.slow
def test_texts_begin_with_bos_where_that_is_asked(toy: tuple[TaskModel, torch.nn.Module]) -> None:
    tasks = TaskModel(toy[0].llm, adds_bos=True)
    assert toy[0].encode("w5") == [5]
    assert tasks.encode("w5") == tasks.encode("<bos> w5") == [2, 5]
    assert tasks.encode("w5", with_marks=False) == [5]
    assert tasks.first_context == 2


def test_arguments_of_a_generation_become_sampling_parameters() -> None:
    assert sampling_of({}).greedy
    assert sampling_of({}).max_tokens == MAX_NEW_TOKENS
    assert sampling_of({"do_sample": False, "temperature": 0.7}).greedy
    sampled = sampling_of({"temperature": 0.7, "top_p": 0.9, "until": "x", "max_gen_toks": 3})
    assert (sampled.temperature, sampled.top_p, sampled.stop, sampled.max_tokens) == (0.7, 0.9, ("x",), 3)
    assert sampling_of({"do_sample": True}).temperature == 1.0
    with pytest.raises(RequestError, match=r"num_beams is no argument .* Known are until, max_gen_toks"):
        sampling_of({"num_beams": 3})
