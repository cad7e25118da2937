"""Parts that answers of several endpoints have: usage, log probabilities, frames of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.engine.outputs import CompletionOutput, Logprob

LOWEST = -9999.0
"""What stands for the log probability of a token that cannot come: JSON has no infinity."""

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def frame(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(document) + b"\n\n"


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def unix_time() -> int:
    """Seconds since 1970, as answers carry them."""
    return int(time.time())


class UsageCount:
    """Tokens of one HTTP request. Owns: its sums."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_completion_tokens = 0
        self._cached: dict[int, int] = {}

    def add_prompt(self, num_tokens: int) -> None:
        """Count the tokens of one prompt."""
        self.num_prompt_tokens += num_tokens

    def add(self, prompt_index: int, outputs: Iterable[CompletionOutput]) -> None:
        """Count what is new of the completions of one prompt."""
        for output in outputs:
            self.num_completion_tokens += len(output.token_ids)
            if output.index == 0:
                self._cached[prompt_index] = max(self._cached.get(prompt_index, 0), output.num_cached_tokens)

    def document(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }


def completion_logprobs(
    token_texts: Sequence[str], entries: Sequence[Mapping[int, Logprob] | None], *, num_top: int, offset: int
) -> dict[str, Any]:
    """`logprobs` of /v1/completions: four lists with an entry for each token; the first token of all has none.

    Parameters:
        num_top: how many best tokens were asked for; the chosen one comes on top where it is not among them.
        offset: characters before the first token.
    """
    offsets = []
    for text in token_texts:
        offsets.append(offset)
        offset += len(text)
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        if entry is None:
            tops.append(None)
            continue
        tops.append({})
        for place in entry.values():
            tops[-1].setdefault(place.decoded_token, _finite(place.logprob))  # type: ignore[union-attr]
    return {
        "tokens": list(token_texts),
        "token_logprobs": [None if entry is None else _finite(next(iter(entry.values())).logprob) for entry in entries],
        "top_logprobs": tops if num_top else None,
        "text_offset": offsets,
    }


def chat_logprobs(entries: Sequence[Mapping[int, Logprob]], *, num_top: int) -> dict[str, Any]:
    """`logprobs` of /v1/chat/completions."""
    content = []
    for entry in entries:
        places = list(entry.values())
        best = sorted(places, key=lambda place: place.rank)[:num_top]
        content.append({**_token(places[0]), "top_logprobs": [_token(place) for place in best]})
    return {"content": content, "refusal": None}


def _token(place: Logprob) -> dict[str, Any]:
    text = place.decoded_token
    return {"token": text, "logprob": _finite(place.logprob), "bytes": list(text.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
