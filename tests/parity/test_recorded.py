"""The recorded answers are those of transformers as installed."""

from __future__ import annotations

import pytest

from tests.parity.recorded import MODELS, NUM_LONG_TOKENS, NUM_TOKENS, Recording, ask, load
from tests.parity.reference import Greedy, count_excused
from tests.parity.texts import PROMPT_LENGTHS

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

NUM_SAMPLED = 6
"""Prompts that every run of the tests asks transformers again, on the smaller model."""


@pytest.mark.slow
def test_the_sampled_answers_are_still_given() -> None:
    recording = load("demo-smollm2")
    check(ask("demo-smollm2", recording.prompts[:NUM_SAMPLED], NUM_TOKENS), recording.outputs[:NUM_SAMPLED])


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_all_answers_are_still_given(name: str) -> None:
    recording = load(name)
    check(ask(name, recording.prompts, NUM_TOKENS), recording.outputs)
    check(ask(name, recording.short_prompts, NUM_LONG_TOKENS), recording.long_outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_recordings_are_whole_and_varied(name: str) -> None:
    recording = load(name)
    assert tuple(map(len, recording.prompts)) == PROMPT_LENGTHS
    assert [len(answer.token_ids) for answer in recording.outputs] == [NUM_TOKENS] * len(PROMPT_LENGTHS)
    assert [len(answer.token_ids) for answer in recording.long_outputs] == [NUM_LONG_TOKENS] * len(
        recording.short_prompts
    )
    assert all(len(set(prompt)) > len(prompt) // 5 for prompt in recording.prompts), "prompts must be varied"
    assert len({tuple(answer.token_ids) for answer in recording.outputs}) > len(PROMPT_LENGTHS) // 2
    assert is_telling(recording)


def is_telling(recording: Recording) -> bool:
    """Whether margins are wide nearly everywhere: a narrow one excuses a difference."""
    margins = [margin for answer in (*recording.outputs, *recording.long_outputs) for margin in answer.margins]
    return sum(margin < 1e-3 for margin in margins) < len(margins) // 100


def check(answers: list[Greedy], recorded: list[Greedy]) -> None:
    assert count_excused([answer.token_ids for answer in answers], recorded) <= 1
