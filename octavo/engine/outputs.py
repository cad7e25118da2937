"""What a caller gets back: one `RequestOutput` per prompt, with the field names that users of vLLM know."""

from __future__ import annotations

import msgspec

from octavo.request import FinishReason


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    """One token's log probability at one place."""

    logprob: float
    """Natural logarithm."""
    rank: int
    """1 is the most likely token of the vocabulary."""
    decoded_token: str
    """The token's own text; U+FFFD where it is a part of a character."""


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a prompt."""

    index: int
    """0 to n - 1."""
    text: str
    token_ids: list[int]
    """Every generated token, the one that stopped the completion included."""
    cumulative_logprob: float | None = None
    """Sum of the chosen tokens' log probabilities; None unless `logprobs` was asked for."""
    logprobs: list[dict[int, Logprob]] | None = None
    """One entry per token of `token_ids`: the chosen token first, then the best ones in falling order."""
    finish_reason: FinishReason | None = None
    """None while the completion is under way. A `str`: `"stop"`, `"length"` or `"abort"`."""
    stop_reason: int | str | None = None
    """The stop string or the id in `stop_token_ids` that ended it; None for end of sequence and for length."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held for this completion."""

    def finished(self) -> bool:
        return self.finish_reason is not None


class BeamSearchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One of the most likely sequences that begin with a prompt."""

    tokens: list[int]
    """Prompt and continuation; the end-of-sequence token only where it was asked for."""
    text: str
    """All of that."""
    cum_logprob: float
    """Sum of the log probabilities of the generated tokens, the end-of-sequence token included."""
    logprobs: list[dict[int, Logprob]]
    """For each generated token, what the best ones at its place were."""
    finish_reason: FinishReason
    """A `str`: `"stop"` or `"length"`."""
    stop_reason: int | None = None
    """The end-of-sequence token that ended it."""


class BeamSearchOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for one prompt."""

    sequences: list[BeamSearchSequence]
    """The best score first."""


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one request in seconds, counted from when its prompt was handed to the engine."""

    first_token_s: float | None = None
    """Until the first token of any of its completions."""
    finished_s: float | None = None
    """Until the last token of all of them."""


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its completions."""

    request_id: str
    prompt: str | None
    """None when the prompt came as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """One entry per prompt token, the first None; None unless asked for."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held for the first completion."""
    metrics: RequestMetrics = RequestMetrics()
