"""A request: what was asked (`SamplingParams`), where it stands (`Request`, `RequestStatus`), why it ended."""

from __future__ import annotations

import enum
import math
from array import array

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
        self._normalise()
        for holds, name, allowed in (
            (self.n >= 1, "n", "at least 1"),
            (0.0 <= self.temperature < float("inf"), "temperature", "0 or more, and finite"),
            (0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1"),
            (self.top_k >= -1, "top_k", "-1 or 0 (every token), or at least 1"),
            (0.0 <= self.min_p <= 1.0, "min_p", "from 0 to 1"),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "from -2 to 2"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "from -2 to 2"),
            (0.0 < self.repetition_penalty < float("inf"), "repetition_penalty", "above 0, and finite"),
            (self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1"),
            (self.min_tokens >= 0, "min_tokens", "0 or more"),
            (
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"at most max_tokens ({self.max_tokens})",
            ),
            (self.logprobs is None or self.logprobs >= 0, "logprobs", "0 or more"),
            (self.prompt_logprobs is None or self.prompt_logprobs >= 0, "prompt_logprobs", "0 or more"),
            (all(self.stop), "stop", "without empty strings"),
            (all(map(math.isfinite, (self.logit_bias or {}).values())), "logit_bias", "of finite numbers"),
        ):
            if not holds:
                raise RequestError(f"{name} is {getattr(self, name)!r}.", remedy=f"It must be {allowed}.")

    def _normalise(self) -> None:
        """A single text or None where a tuple is declared, and lists, are what users of vLLM write: make tuples."""
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            value = getattr(self, name)
            if value is None and name != "allowed_token_ids":
                msgspec.structs.force_setattr(self, name, ())
            elif isinstance(value, str):
                msgspec.structs.force_setattr(self, name, (value,))
            elif value is not None and not isinstance(value, tuple):
                msgspec.structs.force_setattr(self, name, tuple(value))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


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
