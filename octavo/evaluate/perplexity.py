"""Perplexity of a text, by windows that slide over its tokens.

The text becomes n token ids at once, without the marks that its tokenizer would add. Window k holds the marks that the
tokenizer puts before any text (a BOS token, or nothing), then ids from k * stride on, as many as fit:
`window - num_marks`. It scores those that no window before it has scored, each given all that stands before it in its
window; so every window but the first scores `stride` of them (the last one fewer), each given at least
`window - stride` tokens, marks included, and no id is scored twice. Where there are no marks, the first id of the text
has nothing before it and is not scored; with a stride of the whole window, neither is the first id of any window.

    nats per token   minus the mean natural logarithm of the scored ids' probabilities
    perplexity       exp(nats per token)
    bits per byte    what the scored ids cost in all, in bits, per byte of the text that they stand for (UTF-8)

A stride of the whole window is the cheapest, and says the most against the model, because the first ids of each window
have little before them; the smaller the stride, the more context and work each id has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from octavo.engine.llm import LLM
from octavo.evaluate import scoring
from octavo.evaluate.windows import lay_windows


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """What a model makes of a text."""

    perplexity: float
    nats_per_token: float
    bits_per_byte: float
    num_tokens: int
    """Tokens that were scored."""
    num_bytes: int
    """Bytes of text that they stand for."""
    num_windows: int
    window: int
    """Tokens of a whole window, marks included."""
    stride: int
    seconds: float


def perplexity(
    llm: LLM,
    text: str | Sequence[int],
    *,
    window: int | None = None,
    stride: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """The perplexity of `text`, which may be given as token ids without marks; see the top of this file.

    Parameters:
        window: tokens of a window, at most `llm.max_model_len - 1`; None is `DEFAULT_WINDOW`, or that if it is less.
        stride: None is half of the window.
        on_progress: called with the number of tokens scored so far, after each window.

    Beside the text and its ids, only a few windows are in memory at once. Raises `RequestError` as `lay_windows` and
    `score_sequences`.
    """
    started = time.perf_counter()
    tokenizer = llm.get_tokenizer()
    token_ids = tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else list(text)
    windows = lay_windows(
        len(token_ids), tokenizer.prefix_ids, longest=llm.max_model_len - 1, window=window, stride=stride
    )
    num_marks, total, num_scored, num_windows = len(windows.marks), 0.0, 0, 0
    sequences = (
        scoring.Sequence(token_ids=[*windows.marks, *token_ids[begin:end]], num_context=num_marks + scored - begin)
        for begin, scored, end in windows.spans()
    )
    for score in scoring.score_sequences(llm, sequences):
        total += math.fsum(score.logprobs)
        num_scored += len(score.logprobs)
        num_windows += 1
        if on_progress is not None:
            on_progress(num_scored)
    unscored = [tokenizer.decode([token_ids[place]], skip_special_tokens=False) for place in windows.unscored]
    whole = text if isinstance(text, str) else tokenizer.decode(token_ids, skip_special_tokens=False)
    num_bytes = len(whole.encode()) - sum(len(part.encode()) for part in unscored)
    nats = -total / num_scored
    return Perplexity(
        perplexity=math.exp(min(nats, 700.0)),
        nats_per_token=nats,
        bits_per_byte=-total / math.log(2) / max(1, num_bytes),
        num_tokens=num_scored,
        num_bytes=num_bytes,
        num_windows=num_windows,
        window=windows.window,
        stride=windows.stride,
        seconds=time.perf_counter() - started,
    )
