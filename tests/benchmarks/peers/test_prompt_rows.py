"""The rows of llama.cpp's batches."""

from __future__ import annotations

from benchmarks.peers.prompt_rows import MIN_SHARED, prompt_rows, shared_length

ALIKE = list(range(MIN_SHARED))


def test_a_shared_beginning_is_computed_once_for_everyone() -> None:
    rows = prompt_rows([[*ALIKE, 500, 501], [*ALIKE, 600]])
    assert rows[: len(ALIKE)] == [(token, token, [0, 1], False) for token in ALIKE]
    first = len(ALIKE)
    assert rows[first:] == [(500, first, [0], False), (501, first + 1, [0], True), (600, first, [1], True)]


def test_the_last_token_of_a_prompt_is_always_its_own() -> None:
    assert shared_length([[*ALIKE, 500], [*ALIKE, 500]]) == len(ALIKE)
    assert [row[2] for row in prompt_rows([[*ALIKE, 500]] * 2)][-2:] == [[0], [1]]
    assert shared_length([ALIKE, ALIKE]) == 0, "one token short of paying"


def test_lone_and_different_prompts_share_nothing() -> None:
    assert shared_length([[*ALIKE, 500]]) == 0
    assert prompt_rows([[5, 6], [5, 7]]) == [
        (5, 0, [0], False),
        (6, 1, [0], True),
        (5, 0, [1], False),
        (7, 1, [1], True),
    ]
