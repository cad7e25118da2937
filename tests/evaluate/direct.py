"""Log probabilities straight from a transformers model, in float64 from its float32 logits: nothing of ours is used."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def direct_logprobs(model: torch.nn.Module, token_ids: list[int]) -> list[float]:
    """Of every token but the first, given those before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0].double()
    told = logits[:-1].log_softmax(-1)
    return told[torch.arange(len(token_ids) - 1), torch.tensor(token_ids[1:])].tolist()


def direct_windows(
    model: torch.nn.Module, token_ids: list[int], spans: Iterable[tuple[int, int, int]], marks: list[int]
) -> list[float]:
    """The sum over each window's scored ids."""
    sums = []
    for begin, scored, end in spans:
        logprobs = direct_logprobs(model, [*marks, *token_ids[begin:end]])
        sums.append(sum(logprobs[len(marks) + scored - begin - 1 :]))
    return sums
