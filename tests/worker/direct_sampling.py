"""What a request's next token is distributed like: every rule written down directly, in float64."""

from __future__ import annotations

import numpy as np

from octavo.request import SamplingParams


def edited_logits(
    logits: np.ndarray, sampling: SamplingParams, prompt: list[int], output: list[int], eos: tuple[int, ...] = ()
) -> np.ndarray:
    """Logits after allowed ids, biases, bans and penalties."""
    edited = logits.astype(np.float64).copy()
    if sampling.allowed_token_ids is not None:
        outside = np.ones(len(edited), dtype=bool)
        outside[list(sampling.allowed_token_ids)] = False
        edited[outside] = -np.inf
    for token, bias in (sampling.logit_bias or {}).items():
        edited[token] += bias
    if len(output) < sampling.min_tokens:
        edited[[*eos, *sampling.stop_token_ids]] = -np.inf
    for word in sampling.bad_words_token_ids:
        head = list(word[:-1])
        if output[len(output) - len(head) :] == head:
            edited[word[-1]] = -np.inf
    for token in set(prompt) | set(output):
        if edited[token] > 0:
            edited[token] /= sampling.repetition_penalty
        else:
            edited[token] *= sampling.repetition_penalty
    for token in set(output):
        edited[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    return edited


def distribution(edited: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Probability of each token, after temperature, min-p, top-k and top-p."""
    if sampling.temperature == 0:
        return (np.arange(len(edited)) == np.argmax(edited)).astype(np.float64)
    scaled = edited / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < sampling.min_p * weights.max()] = 0.0
    order = np.lexsort((np.arange(len(edited)), -scaled))
    if sampling.top_k > 0:
        weights[order[sampling.top_k :]] = 0.0
    cumulated = np.cumsum(weights[order] / weights.sum())
    num_kept = int(np.searchsorted(cumulated, sampling.top_p, side="left")) + 1
    if sampling.top_p < 1:
        weights[order[num_kept:]] = 0.0
    return weights / weights.sum()
