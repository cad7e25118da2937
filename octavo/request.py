"""A request: what was asked (`SamplingParams`), where it stands (`Request`, `RequestStatus`), why it ended."""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import msgspec

from octavo.errors import RequestError


class FinishReason(enum.StrEnum):
    """Why a completion ended. Values are those of OpenAI's API."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(enum.Enum):
    """Where a request stands in the scheduler."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


MAX_COMPLETIONS = 1024
"""Most completions of one prompt: each is a sequence of its own, made before the first step."""

_INT32 = 2**31
"""Token ids and lengths are int32."""

_MAX_LOGPROBS = 2**20
"""More tokens than any vocabulary has; the engine compares with the model's own."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. Names and defaults are those that users of vLLM know."""

    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1 keep every token."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None: as many as `max_model_len` leaves."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Report the log probabilities of this many best tokens at each place, and of the chosen one; 0 only the chosen."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    """Texts that must not appear; the front end turns them into `bad_words_token_ids`."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, (read, kind) in _READERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if value is None and name in _EMPTY:
                value = ()
            try:
                msgspec.structs.force_setattr(self, name, read(value))
            except (TypeError, ValueError, OverflowError):
                raise RequestError(f"{name} is {_shown(value)}.", remedy=f"It must be {kind}.") from None
        self._check_bounds()

    def _check_bounds(self) -> None:
        for holds, name, allowed in (
            (1 <= self.n <= MAX_COMPLETIONS, "n", f"from 1 to {MAX_COMPLETIONS:,} completions of one prompt"),
            (0.0 <= self.temperature < float("inf"), "temperature", "0 or more, and finite"),
            (0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1"),
            (-1 <= self.top_k < _INT32, "top_k", f"-1 or 0 (every token), or from 1 to {_INT32 - 1}"),
            (0.0 <= self.min_p <= 1.0, "min_p", "from 0 to 1"),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "from -2 to 2"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "from -2 to 2"),
            (0.0 < self.repetition_penalty < float("inf"), "repetition_penalty", "above 0, and finite"),
            (
                self.seed is None or -(2**63) <= self.seed <= 2**64 - self.n,
                "seed",
                "from -2**63 to 2**64 - n: completion i draws with seed + i",
            ),
            (
                self.max_tokens is None or 1 <= self.max_tokens < _INT32,
                "max_tokens",
                f"at least 1 and at most {_INT32 - 1}, or None for as many as max_model_len leaves",
            ),
            (self.min_tokens >= 0, "min_tokens", "0 or more"),
            (
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"at most max_tokens ({self.max_tokens})",
            ),
            (0 <= (self.logprobs or 0) <= _MAX_LOGPROBS, "logprobs", f"from 0 to {_MAX_LOGPROBS}"),
            (0 <= (self.prompt_logprobs or 0) <= _MAX_LOGPROBS, "prompt_logprobs", f"from 0 to {_MAX_LOGPROBS}"),
            (all(self.stop), "stop", "without empty strings"),
            (all(self.bad_words), "bad_words", "without empty strings"),
            (all(map(math.isfinite, (self.logit_bias or {}).values())), "logit_bias", "of finite numbers"),
        ):
            if not holds:
                raise RequestError(f"{name} is {_shown(getattr(self, name))}.", remedy=f"It must be {allowed}.")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _items(value: Any) -> Iterable[Any]:
    """What is in a list, a tuple, a set or an array."""
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    items: Iterable[Any] = value
    return items


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(_items(value))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return texts


def _token_id(value: Any) -> int:
    token_id = _whole(value)
    if not 0 <= token_id < _INT32:
        raise ValueError
    return token_id


def _token_ids(value: Any) -> tuple[int, ...]:
    return tuple(map(_token_id, _items(value)))


def _token_id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_token_ids, _items(value)))


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_token_id(token_id): _number(bias) for token_id, bias in value.items()}


def _shown(value: Any) -> str:
    """`value` as Python writes it, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_WHOLE, _NUMBER, _FLAG = (_whole, "a whole number"), (_number, "a number"), (_flag, "True or False")
_TEXTS = (_texts, "a text or a list of texts")
_IDS = (_token_ids, f"a list of token ids, whole numbers from 0 to {_INT32 - 1}")

_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "n": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _WHOLE,
    "min_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _WHOLE,
    "stop": _TEXTS,
    "stop_token_ids": _IDS,
    "ignore_eos": _FLAG,
    "max_tokens": _WHOLE,
    "min_tokens": _WHOLE,
    "logprobs": _WHOLE,
    "prompt_logprobs": _WHOLE,
    "detokenize": _FLAG,
    "skip_special_tokens": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "logit_bias": (_biases, "a mapping of token ids to numbers"),
    "allowed_token_ids": _IDS,
    "bad_words": _TEXTS,
    "bad_words_token_ids": (_token_id_lists, "a list of lists of token ids"),
}
"""Field of `SamplingParams` -> what makes a plain value of one a caller may write, and what to call such a value.

Numbers of numpy, lists, and a single text where a tuple is declared, become what is declared."""

_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "logit_bias", "allowed_token_ids")
"""Fields that may be None."""

_EMPTY = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids")
"""Fields for which users of vLLM write None where nothing is meant."""


class Request:
    """One sequence on its way through the engine.

    Owns: its token ids (prompt, then output), how many of them have K and V in the cache, its status.
    Never: touches blocks; which blocks hold it is the business of `KVCacheManager` alone.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        arrival: int = 0,
        priority: int = 0,
        cache_salt: str | None = None,
        eos_token_ids: tuple[int, ...] = (),
        max_output_tokens: int,
    ) -> None:
        self.request_id = request_id
        self.sampling = sampling
        self.arrival = arrival
        """Order of arrival: smaller came first."""
        self.priority = priority
        """Smaller runs first under the priority policy."""
        self.cache_salt = cache_salt
        """Requests share prefix blocks only with requests of the same salt."""
        self.eos_token_ids = eos_token_ids
        self.max_output_tokens = max_output_tokens
        self.num_prompt_tokens = len(prompt_token_ids)
        self.token_ids = array("i", prompt_token_ids)
        """Prompt, then output, int32."""
        self.num_computed_tokens = 0
        """Leading tokens whose K and V are in the cache (settled or scheduled in the step under way)."""
        self.num_cached_tokens = -1
        """Prefix-cache hit at first admission; -1 until then."""
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def append_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
