"""How likely a model finds given tokens: log probabilities of the ends of token sequences, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from octavo.engine.llm import LLM
from octavo.errors import RequestError
from octavo.request import SamplingParams

MAX_SEQUENCES, MAX_TOKENS = 128, 4096
"""Most sequences, and tokens of them, that are handed to the engine together (one sequence may be longer): enough to
fill its steps, few enough to hold all their results."""

_SCORING = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, ignore_eos=True)


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens whose last ones are to be scored."""

    token_ids: list[int]
    num_context: int
    """Leading tokens that are read but not scored, at least 1: nothing is said of a first token."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says of a sequence's scored tokens, each given all tokens before it."""

    logprobs: list[float]
    """Natural logarithms, in order."""
    is_greedy: bool
    """Whether each of them was the most likely token."""


def score_sequences(llm: LLM, sequences: Iterable[Sequence]) -> Iterator[Score]:
    """A score for each sequence, in order. `sequences` is read as it is needed, a few at a time.

    They run through the engine as prompts with `prompt_logprobs`, so a sequence may have `llm.max_model_len - 1`
    tokens: the engine keeps room for one that it generates. Raises `RequestError` for a longer one, for one without
    context, and for token ids that are not in the vocabulary.
    """
    for batch in _batches(sequences):
        outputs = llm.start_run([{"prompt_token_ids": sequence.token_ids} for sequence in batch], _SCORING).finish()
        for sequence, output in zip(batch, outputs, strict=True):
            told = output.prompt_logprobs or []
            places = zip(sequence.token_ids, told, strict=True)
            scored = [place[token_id] for token_id, place in islice(places, sequence.num_context, None) if place]
            yield Score(
                logprobs=[entry.logprob for entry in scored], is_greedy=all(entry.rank == 1 for entry in scored)
            )


def _batches(sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
    batch: list[Sequence] = []
    num_tokens = 0
    for sequence in sequences:
        _check_context(sequence)
        if batch and (len(batch) == MAX_SEQUENCES or num_tokens + len(sequence.token_ids) > MAX_TOKENS):
            yield batch
            batch, num_tokens = [], 0
        batch.append(sequence)
        num_tokens += len(sequence.token_ids)
    if batch:
        yield batch


def _check_context(sequence: Sequence) -> None:
    if not 1 <= sequence.num_context <= len(sequence.token_ids):
        raise RequestError(
            f"A sequence of {len(sequence.token_ids)} tokens is to be scored after {sequence.num_context} of them.",
            remedy="At least one token must come before those that are scored.",
        )
