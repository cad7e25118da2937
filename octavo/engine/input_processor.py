"""Prompts and sampling parameters, in every form a caller may give them, to checked `PromptRequest`s.

A text becomes token ids here, so whatever concerns the text or the length is refused here, before any request of the
same call reaches the engine core.
"""

from __future__ import annotations

import itertools
import operator
from collections import UserString
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec

from octavo.engine.grammar_vocabulary import VocabularySource, compiler_for
from octavo.errors import RequestError
from octavo.messages import EngineCoreRequest
from octavo.request import SamplingParams

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
"""What a prompt given as a dict may hold."""

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or a dict: `{"prompt": text}` or `{"prompt_token_ids": ids}`, either with a `"cache_salt"`."""


class PromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checked prompt with its parameters; `sampling.n` completions are wanted."""

    request_id: str
    prompt: str | None
    """None when the prompt came as token ids."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    owner: str | None = None
    eos_token_ids: tuple[int, ...] = ()

    def sequences(self) -> list[EngineCoreRequest]:
        """One core request per completion. Completion i draws with seed + i; the first computes the prompt and reports
        its log probabilities, the others go on from its blocks."""
        names = (
            [self.request_id] if self.sampling.n == 1 else [f"{self.request_id}.{i}" for i in range(self.sampling.n)]
        )
        return [
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=self.prompt_token_ids,
                sampling=self._sampling_of(index),
                priority=self.priority,
                cache_salt=self.cache_salt,
                owner=self.owner,
                eos_token_ids=self.eos_token_ids,
                parent_id=names[0] if index else None,
            )
            for index, name in enumerate(names)
        ]

    def _sampling_of(self, index: int) -> SamplingParams:
        if self.sampling.n == 1:
            return self.sampling
        seed = self.sampling.seed
        return msgspec.structs.replace(
            self.sampling,
            n=1,
            seed=None if seed is None else seed + index,
            prompt_logprobs=self.sampling.prompt_logprobs if index == 0 else None,
        )


class InputProcessor:
    """Owns: the tokenizer, the limits of the running model, a counter for request ids. Never: talks to the core.

    Token ids, and what only the core can judge (blocks), the core checks itself.

    Parameters:
        max_model_len: longest prompt + output in tokens.
        max_position: longest sequence the model was made for: how far a remedy may raise `max_model_len`.
        vocab_size: tokens that the model knows, which may be fewer than the tokenizer makes.
    """

    def __init__(
        self,
        tokenizer: VocabularySource,
        *,
        max_model_len: int,
        max_position: int,
        vocab_size: int,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._max_model_len = max_model_len
        self._max_position = max_position
        self._vocab_size = vocab_size
        self.grammars = compiler_for(tokenizer, vocab_size)
        """Checks the forms that outputs must have."""
        # Callers may be threads: counting by `next` gives no number twice.
        self._numbers = itertools.count()

    def process(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        add_special_tokens: bool = True,
    ) -> list[PromptRequest]:
        """All prompts as requests, in order. Raises `RequestError` that names the first bad one; then none exists."""
        listed = list_prompts(prompts)
        wanted = SamplingParams(**self._defaults) if sampling_params is None else sampling_params
        params = _one_each(wanted, len(listed), "sampling_params", SamplingParams)
        priorities = _one_each(priority, len(listed), "priority", int)
        for given in priorities:
            if not -(2**63) <= given < 2**63:
                raise RequestError(
                    f"priority is {given!r:.60}.", remedy="It must be from -2**63 to 2**63 - 1.", parameter="priority"
                )
        requests = []
        for index, (prompt, sampling, prompt_priority) in enumerate(zip(listed, params, priorities, strict=True)):
            try:
                requests.append(self._request(prompt, sampling, prompt_priority, special=add_special_tokens))
            except RequestError as error:
                raise name_prompt(error, index, len(listed)) from None
        return requests

    def _request(self, prompt: Prompt, sampling: SamplingParams, priority: int, *, special: bool) -> PromptRequest:
        text, token_ids, cache_salt = _parts(prompt)
        if text is not None:
            token_ids = self._tokenizer.encode(text, add_special_tokens=special)
            self._check_known(token_ids, "the prompt's text")
        token_ids = self._truncated(token_ids, sampling)
        self._check_length(token_ids)
        if sampling.structured_outputs is not None:
            self.grammars.check(sampling.structured_outputs)
        request_id = str(next(self._numbers))
        return PromptRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            sampling=self._with_bad_words(self._fitted(sampling, len(token_ids))),
            priority=priority,
            cache_salt=cache_salt,
            eos_token_ids=tuple(self._tokenizer.eos_token_ids),
        )

    def _check_known(self, token_ids: Sequence[int], what: str) -> None:
        """Refuse a text of which the tokenizer makes tokens that the model has not."""
        unknown = max(token_ids, default=0)
        if unknown >= self._vocab_size:
            raise RequestError(
                f"The tokenizer makes token {unknown} of {what}, but the model's vocabulary has {self._vocab_size} "
                "tokens, from 0 on: it is not the tokenizer of this model.",
                remedy="Name the model's own tokenizer (--tokenizer).",
                token_id=unknown,
                vocab_size=self._vocab_size,
            )

    def _truncated(self, token_ids: list[int], sampling: SamplingParams) -> list[int]:
        """The last tokens of a prompt, as many as `truncate_prompt_tokens` says."""
        num_kept = sampling.truncate_prompt_tokens
        if num_kept is None:
            return token_ids
        if num_kept == -1:
            num_kept = max(1, self._max_model_len - (sampling.max_tokens or 1))
        return token_ids[-num_kept:]

    def _check_length(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise RequestError("The prompt is empty.", remedy="Give it at least one token.")
        num_tokens = len(token_ids)
        if num_tokens >= self._max_model_len:
            fitting = self._max_model_len - 1
            remedy = f"Shorten it to at most {fitting} tokens" if fitting else "No prompt leaves room for output"
            if num_tokens < self._max_position:
                remedy += f", or raise max_model_len (--max-model-len) to at least {num_tokens + 1}"
            raise RequestError(
                f"The prompt has {num_tokens} tokens, but prompt and output together may have {self._max_model_len} "
                "(max_model_len), at least one of them output.",
                remedy=remedy + ".",
                num_prompt_tokens=num_tokens,
                max_model_len=self._max_model_len,
            )

    def _fitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`sampling` with `max_tokens` cut to what `max_model_len` leaves beside the prompt."""
        if sampling.stop and not sampling.detokenize:
            raise RequestError(
                "Stop strings cannot be found with detokenize=False.",
                remedy="Leave detokenize on, or use stop_token_ids.",
                parameter="stop",
            )
        room = self._max_model_len - num_prompt_tokens
        if sampling.min_tokens > room:
            raise RequestError(
                f"min_tokens is {sampling.min_tokens}, but beside {num_prompt_tokens} prompt tokens the max_model_len "
                f"of {self._max_model_len} leaves {room}.",
                remedy=f"Lower min_tokens to at most {room}, or raise max_model_len (--max-model-len).",
                parameter="min_tokens",
                min_tokens=sampling.min_tokens,
                room=room,
            )
        if sampling.max_tokens is not None and sampling.max_tokens <= room:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=room)

    def _with_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        """`bad_words` as token ids: each word as it stands at the start of a text and after a space."""
        if not sampling.bad_words:
            _refuse_contradiction(sampling)
            return sampling
        banned = list(sampling.bad_words_token_ids)
        for word in sampling.bad_words:
            check_text(word, "A bad word")
            for text in (word.strip(), " " + word.strip()):
                token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                self._check_known(token_ids, f"the bad word {word!r:.40}")
                if token_ids and token_ids not in banned:
                    banned.append(token_ids)
        sampling = msgspec.structs.replace(sampling, bad_words_token_ids=tuple(banned))
        _refuse_contradiction(sampling)
        return sampling


def _refuse_contradiction(sampling: SamplingParams) -> None:
    """Raises `RequestError` when no token is both allowed and not bad."""
    allowed = sampling.allowed_token_ids
    never = {word[0] for word in sampling.bad_words_token_ids if len(word) == 1}
    if allowed and never.issuperset(allowed):
        raise RequestError(
            f"Each of the {len(set(allowed))} allowed tokens is a bad word as well.",
            remedy="Allow one more token in allowed_token_ids, or take one out of the bad words.",
            parameter="allowed_token_ids",
        )


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """`prompts` as a list: a single text, dict or list of token ids is a list of one.

    Raises `RequestError` for anything else that is not a sequence of prompts.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not _is_listing(prompts):
        raise RequestError(f"Prompts cannot be read from a {type(prompts).__name__}.", remedy=_PROMPT_FORMS)
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(_is_id(item) for item in listed) else listed


def name_prompt(error: RequestError, index: int, num_prompts: int) -> RequestError:
    """`error` with the number of the prompt it speaks of, where there are several."""
    if num_prompts == 1:
        return error
    numbers = {**error.numbers, "prompt_index": index}
    fact = f"prompts[{index}] (of {num_prompts}): {error.fact}"
    return RequestError(fact, remedy=error.remedy, parameter=error.parameter, **numbers)


_PROMPT_FORMS = 'A prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}.'


def _parts(prompt: Prompt) -> tuple[str | None, list[int], str | None]:
    """(text or None, token ids where there is no text, cache salt or None)."""
    cache_salt: str | None = None
    content: Any = prompt
    if isinstance(prompt, Mapping):
        unknown = [key for key in prompt if key not in PROMPT_KEYS]
        if unknown or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
            what = f"the unknown key {unknown[0]!r}" if unknown else "not exactly one of prompt and prompt_token_ids"
            raise RequestError(f"A prompt dict has {what}.", remedy=_PROMPT_FORMS)
        cache_salt = prompt.get("cache_salt")
        if not isinstance(cache_salt, str | None) or cache_salt == "":
            raise RequestError(f"cache_salt is {cache_salt!r}.", remedy="It must be a text that is not empty.")
        check_text(cache_salt or "", "cache_salt")
        content = prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"]
        if isinstance(content, str) != ("prompt" in prompt):
            raise RequestError(f"A prompt dict has {content!r:.60} in the wrong place.", remedy=_PROMPT_FORMS)
    if isinstance(content, str):
        if not content:
            raise RequestError("The prompt is empty.", remedy="Give it at least one character.")
        check_text(content, "The prompt")
        return content, [], cache_salt
    if _is_listing(content) and all(_is_id(item) for item in content):
        return None, [operator.index(item) for item in content], cache_salt
    raise RequestError(f"The prompt {content!r:.60} is neither text nor token ids.", remedy=_PROMPT_FORMS)


def _is_listing(given: object) -> TypeGuard[Iterable[Any]]:
    """Whether `given` has items. Bytes have some too, but whoever gives them means a text."""
    return isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview | UserString)


def check_text(text: str, what: str) -> None:
    """Raises `RequestError` when `text` holds half of a surrogate pair: no encoding keeps it as it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} has a lone surrogate (U+{ord(text[error.start]):04X} at position {error.start}), which is no "
            "character.",
            remedy="Remove it, or decode the text's source with the right encoding.",
            position=error.start,
        ) from None


def _is_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, bool)


def _one_each(given: Any, num_prompts: int, name: str, kind: type) -> list[Any]:
    """`given` for every prompt: a single value is repeated, a sequence must have one per prompt."""
    if isinstance(given, kind):
        return [given] * num_prompts
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if values is None or any(not isinstance(value, kind) for value in values):
        raise RequestError(
            f"{name} is {given!r:.60}.", remedy=f"It must be a {kind.__name__}, or a list with one for each prompt."
        )
    if len(values) != num_prompts:
        raise RequestError(
            f"There are {num_prompts} prompts, but {len(values)} {name}.",
            remedy="Give one for all prompts, or one for each.",
        )
    return values
