"""Masks of some of a step's rows, as they come from the engine core."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import InvariantError
from octavo.worker.token_masks import gather_masks, no_masks


def mask_of(tokens: set[int], num_bytes: int) -> bytes:
    bits = np.zeros(8 * num_bytes, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize(("vocab_size", "num_bytes"), [(40, 5), (40, 8), (64, 8), (33, 64)])
def test_masks_stand_by_their_rows_whatever_their_padding(vocab_size: int, num_bytes: int) -> None:
    wanted = {"b": {0, 7, 32}, "d": {31}}
    masks = gather_masks(
        {name: mask_of(tokens, num_bytes) for name, tokens in wanted.items()} | {"gone": b""}, "abcd", vocab_size
    )
    assert masks.places.tolist() == [-1, 0, -1, 1]
    assert masks.words.shape == (2, 2)
    for place, tokens in enumerate(wanted.values()):
        bits = [token for token in range(vocab_size) if masks.words[place][token // 32] >> token % 32 & 1]
        assert set(bits) == tokens
    assert masks.of(np.array([3, 0])).places.tolist() == [1, -1]


def test_no_masks_at_all() -> None:
    masks = gather_masks({}, ["a", "b"], 10)
    assert masks.places.tolist() == no_masks(2).places.tolist() == [-1, -1]
    assert not len(masks.words)


def test_a_mask_for_another_vocabulary_is_a_mistake() -> None:
    with pytest.raises(InvariantError, match="16 tokens for a vocabulary of 17"):
        gather_masks({"a": b"\0\0"}, ["a"], 17)
