"""A request: what was asked (`SamplingParams`), where it stands (`Request`, `RequestStatus`), why it ended."""

from __future__ import annotations

import enum
import math
from array import array
from typing import Any, ClassVar

import msgspec

from octavo.parameters import (
    BIASES,
    FLAG,
    ID_LISTS,
    IDS,
    IDS_OR_NONE,
    INT32,
    MAPPING,
    NUMBER,
    TEXTS,
    WHOLE,
    Field,
    KeywordParameters,
    check_bounds,
    read_fields,
)
from octavo.structured_outputs import StructuredOutputsParams, structured_outputs_from


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

MAX_BEAM_WIDTH = 256
"""Each beam is a sequence of its own."""

_MAX_LOGPROBS = 2**20
"""More tokens than any vocabulary has; the engine compares with the model's own."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, metaclass=KeywordParameters):
    """How to choose tokens. Names and defaults are those that users of vLLM know.

    Raises `RequestError` for an impossible value, an unknown field, and one of `REFUSED` that asks for something.
    """

    n: int = 1
    """Completions of one prompt; they share its blocks."""
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
    """None and -1: drawn from the engine's own seed."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None: as many as `max_model_len` leaves."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Report the log probabilities of this many best tokens at each place, and of the chosen one; 0 only the chosen,
    -1 the whole vocabulary."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first. All of the prompt is computed then, whatever the cache holds."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """False: no space between special tokens that follow each other, where the tokenizer puts one."""
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens of the prompt, the last ones; -1 as many as `max_tokens` leaves."""
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    """Texts that must not appear; the front end turns them into `bad_words_token_ids`."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    structured_outputs: StructuredOutputsParams | None = None
    """The form that the output must have; a dict of its fields will do."""
    skip_reading_prefix_cache: bool | None = None
    """True: compute the whole prompt, whatever the cache holds. Its blocks still enter the cache."""
    extra_args: dict[str, Any] | None = None
    """Carried with the request for whoever extends Octavo; nothing in it is read here."""

    REFUSED: ClassVar[dict[str, str]] = {
        "best_of": "Ask for n completions with logprobs=0 and keep those with the greatest cumulative_logprob.",
        "use_beam_search": "Call LLM.beam_search.",
        "guided_decoding": "Give StructuredOutputsParams as structured_outputs.",
        "response_format": "Give StructuredOutputsParams(json=schema) as structured_outputs.",
        "logits_processors": "Use logit_bias, allowed_token_ids, bad_words or the penalties.",
        "flat_logprobs": "Leave it out: logprobs is a list with one dict per token.",
        "output_kind": "Leave it out: generate gives the whole output, start_run what each step adds.",
        "thinking_token_budget": "Bound the output with max_tokens.",
        "repetition_detection": "Use repetition_penalty, or stop strings.",
        "logprob_token_ids": "Ask for logprobs=-1, the whole vocabulary.",
        "prompt_logprob_token_ids": "Ask for prompt_logprobs=-1, the whole vocabulary.",
        "prompt_logprob_start": "Leave it out: prompt_logprobs describes every token of the prompt.",
        "stream_interval": "Leave it out: start_run gives what each step adds.",
        "watermarking": "Leave it out: nothing is marked.",
        "skip_clone": "Leave it out: parameters are frozen, and never copied.",
        "output_text_buffer_length": "Leave it out: it follows from the stop strings.",
        "routed_experts_prompt_start": "Leave it out: which experts were picked is not returned.",
        "trace_decode_token_ids": "Put the tokens behind the prompt and ask for prompt_logprobs.",
    }
    """Fields of other engines that are not supported -> what to do instead."""

    def __post_init__(self) -> None:
        read_fields(self, _READERS, optional=_OPTIONAL)
        if self.seed == -1:
            msgspec.structs.force_setattr(self, "seed", None)
        self._check_bounds()

    def _check_bounds(self) -> None:
        counts_allowed = f"from 0 to {_MAX_LOGPROBS}, or -1 for the whole vocabulary"
        rules = (
            (1 <= self.n <= MAX_COMPLETIONS, "n", f"from 1 to {MAX_COMPLETIONS:,} completions of one prompt"),
            (0.0 <= self.temperature < float("inf"), "temperature", "0 or more, and finite"),
            (0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1"),
            (-1 <= self.top_k < INT32, "top_k", f"-1 or 0 (every token), or from 1 to {INT32 - 1}"),
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
                self.max_tokens is None or 1 <= self.max_tokens < INT32,
                "max_tokens",
                f"at least 1 and at most {INT32 - 1}, or None for as many as max_model_len leaves",
            ),
            (self.min_tokens >= 0, "min_tokens", "0 or more"),
            (
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"at most max_tokens ({self.max_tokens})",
            ),
            (-1 <= (self.logprobs or 0) <= _MAX_LOGPROBS, "logprobs", counts_allowed),
            (-1 <= (self.prompt_logprobs or 0) <= _MAX_LOGPROBS, "prompt_logprobs", counts_allowed),
            (
                self.truncate_prompt_tokens in (None, -1) or 1 <= (self.truncate_prompt_tokens or 0) < INT32,
                "truncate_prompt_tokens",
                "at least 1, or -1 for as many as max_tokens leaves",
            ),
            (all(self.stop), "stop", "without empty strings"),
            (all(self.bad_words), "bad_words", "without empty strings"),
            (all(map(math.isfinite, (self.logit_bias or {}).values())), "logit_bias", "of finite numbers"),
        )
        check_bounds(self, rules)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


_READERS: dict[str, Field] = {
    "n": WHOLE,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": WHOLE,
    "min_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "seed": WHOLE,
    "stop": TEXTS,
    "stop_token_ids": IDS_OR_NONE,
    "ignore_eos": FLAG,
    "max_tokens": WHOLE,
    "min_tokens": WHOLE,
    "logprobs": WHOLE,
    "prompt_logprobs": WHOLE,
    "detokenize": FLAG,
    "skip_special_tokens": FLAG,
    "spaces_between_special_tokens": FLAG,
    "include_stop_str_in_output": FLAG,
    "truncate_prompt_tokens": WHOLE,
    "logit_bias": BIASES,
    "allowed_token_ids": IDS,
    "bad_words": TEXTS,
    "bad_words_token_ids": ID_LISTS,
    "structured_outputs": Field(structured_outputs_from, "StructuredOutputsParams, or a dict of its fields"),
    "skip_reading_prefix_cache": FLAG,
    "extra_args": MAPPING,
}
"""Field of `SamplingParams` -> how it is read."""

_OPTIONAL = (
    "seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "logit_bias", "allowed_token_ids",
    "structured_outputs", "skip_reading_prefix_cache", "extra_args",
)  # fmt: skip
"""Fields that may be None."""


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, metaclass=KeywordParameters):
    """How to search for the most likely continuations. Names and defaults are those that users of vLLM know.

    See `octavo.engine.beam_search` for the exact definition.
    """

    beam_width: int
    """Candidates kept after each token, and sequences returned for each prompt."""
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """0 or 1: the search compares the model's own probabilities."""
    length_penalty: float = 1.0
    """A sequence's score is its log probability divided by its number of generated tokens to this power."""
    include_stop_str_in_output: bool = False
    """Whether a sequence's tokens have the end-of-sequence token that ended it."""
    skip_special_tokens: bool = True
    """Whether a sequence's text leaves special tokens out."""

    REFUSED: ClassVar[dict[str, str]] = {
        "structured_outputs": "Check the texts yourself.",
        "watermarking": "Leave it out: nothing is marked.",
        "n": "Ask for a beam_width of n: that many sequences are returned.",
        "early_stopping": "Leave it out: the search goes on until no candidate can do better.",
        "best_of": "Give the width as beam_width.",
    }
    """Fields of other engines that are not supported -> what to do instead."""

    def __post_init__(self) -> None:
        read_fields(self, _BEAM_READERS, optional=())
        rules = (
            (1 <= self.beam_width <= MAX_BEAM_WIDTH, "beam_width", f"from 1 to {MAX_BEAM_WIDTH}"),
            (1 <= self.max_tokens < INT32, "max_tokens", f"from 1 to {INT32 - 1}"),
            (
                self.temperature in (0.0, 1.0),
                "temperature",
                "0 or 1: the search compares the model's own probabilities, and draws nothing",
            ),
            (abs(self.length_penalty) <= 100.0, "length_penalty", "from -100 to 100"),
        )
        check_bounds(self, rules)


_BEAM_READERS: dict[str, Field] = {
    "beam_width": WHOLE,
    "max_tokens": WHOLE,
    "ignore_eos": FLAG,
    "temperature": NUMBER,
    "length_penalty": NUMBER,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
}
"""Field of `BeamSearchParams` -> how it is read."""


def int32_array(numbers: list[int]) -> array[int]:
    """`array("i", numbers)`, in a third of the time: the unsigned code reads an int without a format string."""
    try:
        data = array("I", numbers).tobytes()
    except OverflowError:
        return array("i", numbers)
    # The last byte of each number shows its sign. (On a big-endian machine it is the first one: the slow way, then.)
    return array("i", data) if data[3::4].isascii() else array("i", numbers)


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
        owner: str | None = None,
        eos_token_ids: tuple[int, ...] = (),
        max_output_tokens: int,
        parent_id: str | None = None,
        keep_blocks: bool = False,
    ) -> None:
        self.request_id = request_id
        self.sampling = sampling
        self.arrival = arrival
        """Order of arrival: smaller came first."""
        self.priority = priority
        """Smaller runs first under the priority policy."""
        self.cache_salt = cache_salt
        """Requests share prefix blocks only with requests of the same salt."""
        self.owner = owner
        """Whose share of the engine it takes; None is nobody's."""
        self.eos_token_ids = eos_token_ids
        self.max_output_tokens = max_output_tokens
        self.parent_id = parent_id
        """A request whose blocks hold leading tokens of this one."""
        self.keep_blocks = keep_blocks
        """Whether its blocks outlive it, for children."""
        self.num_prompt_tokens = len(prompt_token_ids)
        self.token_ids = int32_array(prompt_token_ids)
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
    def may_skip_prefix(self) -> bool:
        """Whether tokens that the prefix cache holds need not be computed. Log probabilities of the prompt need all
        of it, once: a request that has output has reported them."""
        sampling = self.sampling
        if sampling.skip_reading_prefix_cache:
            return False
        return sampling.prompt_logprobs is None or self.num_output_tokens > 0

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def append_token(self, token_id: int) -> int:
        """Take in a generated token; how many tokens there are now."""
        self.token_ids.append(token_id)
        return len(self.token_ids)
