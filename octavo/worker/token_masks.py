"""Which tokens the requests of a step may be given, where not all: one bit for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from octavo.errors import InvariantError
from octavo.worker.sampling_table import Int32Array, Int64Array


class TokenMasks(NamedTuple):
    """Masks of some rows of a step's logits."""

    words: Int32Array
    """[masks, words]: bit `i % 32` of word `i // 32`, the lowest being bit 0, speaks of token i."""
    places: Int64Array
    """[N]: the mask of each row of logits; -1 where it has none."""

    def of(self, which: Int64Array) -> TokenMasks:
        """The masks of some of the rows."""
        return TokenMasks(self.words, self.places[which])


def no_masks(num_rows: int) -> TokenMasks:
    """Every row may be given every token."""
    return TokenMasks(np.zeros((0, 0), dtype=np.int32), np.full(num_rows, -1, dtype=np.int64))


def gather_masks(masks: Mapping[str, bytes], names: Sequence[str], vocab_size: int) -> TokenMasks:
    """The masks of the requests `names`, which have a row of logits each, out of `SchedulerOutput.token_masks`.

    Raises `InvariantError` where one speaks of fewer tokens than there are.
    """
    found = no_masks(len(names))
    if not masks:
        return found
    num_words = -(-vocab_size // 32)
    rows = [row for row, name in enumerate(names) if name in masks]
    words = np.zeros((len(rows), num_words), dtype="<i4")
    for place, row in enumerate(rows):
        mask = masks[names[row]]
        if 8 * len(mask) < vocab_size:
            raise InvariantError(f"a mask of {8 * len(mask)} tokens for a vocabulary of {vocab_size}")
        words[place].view(np.uint8)[: len(mask)] = np.frombuffer(mask, dtype=np.uint8)[: 4 * num_words]
    found.places[rows] = np.arange(len(rows))
    return TokenMasks(words.astype(np.int32, copy=False), found.places)
