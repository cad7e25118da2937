from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from octavo.errors import UnsupportedModelError
from octavo.models.mask_kind import MaskKind, find_mask_kind


def test_full() -> None:
    assert find_mask_kind(causal_mask_function, 100) == MaskKind("full")


@pytest.mark.parametrize("span", [1, 2, 7, 49, 99])
def test_windows(span: int) -> None:
    assert find_mask_kind(sliding_window_causal_mask_function(span), 100) == MaskKind("window", span)


@pytest.mark.parametrize("span", [2, 7, 64, 99])
def test_chunks(span: int) -> None:
    mask = chunked_causal_mask_function(span, torch.zeros(1, dtype=torch.long))
    assert find_mask_kind(mask, 100) == MaskKind("chunk", span)


def test_a_span_that_nothing_outgrows_is_full() -> None:
    assert find_mask_kind(sliding_window_causal_mask_function(100), 100) == MaskKind("full")
    assert find_mask_kind(sliding_window_causal_mask_function(99), 100) == MaskKind("window", 99)


def test_a_window_far_beyond_any_batch_is_found() -> None:
    assert find_mask_kind(sliding_window_causal_mask_function(4096), 131072) == MaskKind("window", 4096)


@pytest.mark.parametrize(
    "mask",
    [
        bidirectional_mask_function,
        or_masks(causal_mask_function, lambda b, h, q, k: k < 3),
        and_masks(causal_mask_function, lambda b, h, q, k: k % 2 == 0),
        and_masks(causal_mask_function, lambda b, h, q, k: k != 5),
        or_masks(sliding_window_causal_mask_function(8), lambda b, h, q, k: (k == 1) & (k <= q)),
        lambda b, h, q, k: k < q,
    ],
    ids=["both-ways", "prefix", "every-second", "hole", "window-and-anchor", "not-itself"],
)
def test_other_masks_are_refused(mask: object) -> None:
    with pytest.raises(UnsupportedModelError, match="neither causal, nor a sliding window, nor a chunk"):
        find_mask_kind(mask, 100)  # type: ignore[arg-type]


def test_visible_says_the_same_as_the_function() -> None:
    positions = torch.arange(30)
    for kind, mask in (
        (MaskKind("full"), causal_mask_function),
        (MaskKind("window", 7), sliding_window_causal_mask_function(7)),
        (MaskKind("chunk", 7), chunked_causal_mask_function(7, torch.zeros(1, dtype=torch.long))),
    ):
        zero = torch.zeros((), dtype=torch.long)
        expected = torch.as_tensor(mask(zero, zero, positions[:, None], positions[None, :]))
        assert torch.equal(kind.visible(positions[:, None], positions[None, :]), expected)
