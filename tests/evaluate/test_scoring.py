"""Scores are the model's log probabilities, whatever runs beside them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from octavo.engine.llm import LLM
from octavo.errors import RequestError
from octavo.evaluate import scoring
from octavo.evaluate.scoring import Sequence, score_sequences
from tests.evaluate.direct import direct_logprobs
from tests.parity.tiny import HYBRID, VOCAB_SIZE, build_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, torch.nn.Module]]:
    folder: Path = tmp_path_factory.mktemp("toy")
    model = build_model(folder, HYBRID)
    options = {"dtype": "float32", "kv_memory": "4MiB", "max_num_batched_tokens": 50}
    with LLM(str(folder), **options) as llm:
        yield llm, model


def _sequences(count: int) -> list[Sequence]:
    draw = random.Random(5)
    lengths = [draw.randint(2, 90) for _ in range(count)]
    return [
        Sequence(token_ids=[draw.randrange(3, VOCAB_SIZE) for _ in range(length)], num_context=draw.randint(1, length))
        for length in lengths
    ]


def test_scores_equal_transformers(toy: tuple[LLM, torch.nn.Module]) -> None:
    llm, model = toy
    sequences = _sequences(30)
    for sequence, score in zip(sequences, score_sequences(llm, sequences), strict=True):
        expected = direct_logprobs(model, sequence.token_ids)[sequence.num_context - 1 :]
        assert score.logprobs == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_greedy_is_what_the_model_itself_would_say(toy: tuple[LLM, torch.nn.Module]) -> None:
    llm, model = toy
    prompt = [5, 9, 77, 140]
    own = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    token_ids = own[0].tolist()
    other = [*token_ids[:-1], 3 if token_ids[-1] != 3 else 4]
    scores = score_sequences(llm, [Sequence(token_ids=ids, num_context=4) for ids in (token_ids, other)])
    assert [score.is_greedy for score in scores] == [True, False]


def test_few_sequences_are_taken_at_a_time(toy: tuple[LLM, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_SEQUENCES", 4)
    taken = 0

    def counted() -> Iterator[Sequence]:
        nonlocal taken
        for sequence in _sequences(20):
            taken += 1
            yield sequence

    scores = score_sequences(toy[0], counted())
    assert next(scores).logprobs
    assert taken == 5
    assert len(list(scores)) == 19


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Sequence(token_ids=[5, 6], num_context=0), r"2 tokens is to be scored after 0 of them\. At least one token"),
        (Sequence(token_ids=[5, 6], num_context=3), r"2 tokens is to be scored after 3 of them"),
        (Sequence(token_ids=[5] * 256, num_context=1), r"The prompt has 256 tokens"),
        (Sequence(token_ids=[5, VOCAB_SIZE], num_context=1), r"Token id 320"),
    ],
)
def test_what_cannot_be_scored_is_refused(toy: tuple[LLM, torch.nn.Module], sequence: Sequence, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        list(score_sequences(toy[0], [sequence]))
    assert toy[0].stats().num_used_blocks == 0
