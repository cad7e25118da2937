"""From a message to a `Request`: what can be checked against the vocabulary, before the scheduler checks the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from octavo.engine.input_processor import PromptRequest, name_prompt
from octavo.errors import RequestError
from octavo.messages import EngineCoreRequest
from octavo.request import Request, SamplingParams


def build_request(message: EngineCoreRequest, *, vocab_size: int, max_model_len: int, arrival: int) -> Request:
    """The request that `message` asks for.

    `max_tokens` None becomes what `max_model_len` leaves, and -1 log probabilities the whole vocabulary.
    End-of-sequence ids outside the vocabulary are dropped: they can never be sampled.
    Raises `RequestError` when a token id of the prompt is not in 0 ... vocab_size - 1, and as `check_vocabulary`.
    """
    name, sampling = message.request_id, message.sampling
    _check_token_ids("the prompt", message.prompt_token_ids, vocab_size, of_request=name)
    check_vocabulary(sampling, vocab_size, of_request=name)
    whole = {field: vocab_size for field in _COUNTS if getattr(sampling, field) == -1}
    if whole:
        sampling = msgspec.structs.replace(sampling, **whole)
    max_output_tokens = sampling.max_tokens
    if max_output_tokens is None:
        max_output_tokens = max(1, max_model_len - len(message.prompt_token_ids))
    return Request(
        name,
        message.prompt_token_ids,
        sampling,
        arrival=arrival,
        priority=message.priority,
        cache_salt=message.cache_salt,
        owner=message.owner,
        eos_token_ids=tuple(token_id for token_id in message.eos_token_ids if 0 <= token_id < vocab_size),
        max_output_tokens=max_output_tokens,
        parent_id=message.parent_id,
        keep_blocks=message.keep_blocks,
    )


def check_requests(requests: Sequence[PromptRequest], *, vocab_size: int, max_model_len: int) -> None:
    """Raises the `RequestError` that `build_request` would raise, with the number of the prompt that is wrong."""
    for index, request in enumerate(requests):
        sequence = request.sequences()[0]
        try:
            build_request(sequence, vocab_size=vocab_size, max_model_len=max_model_len, arrival=index)
        except RequestError as error:
            raise name_prompt(error, index, len(requests)) from None


def check_vocabulary(sampling: SamplingParams, vocab_size: int, *, of_request: str | None = None) -> None:
    """Raise `RequestError`, which names the field, where `sampling` speaks of tokens that a vocabulary of `vocab_size`
    has not. Needs nothing but the model's config, so it can be asked before a model is loaded.
    """
    for field, token_ids in _token_ids_of(sampling):
        _check_token_ids(field, token_ids, vocab_size, of_request=of_request)
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise RequestError(
            f"allowed_token_ids{_owner(of_request)} is empty.",
            remedy="Allow at least one token, or leave it out.",
            parameter="allowed_token_ids",
        )
    for field in _COUNTS:
        wanted = getattr(sampling, field)
        if wanted is not None and wanted > vocab_size:
            raise RequestError(
                f"{field}{_owner(of_request)} is {wanted}, more than the vocabulary of {vocab_size} tokens.",
                remedy=f"Ask for at most {vocab_size}.",
                parameter=field,
                vocab_size=vocab_size,
            )


_COUNTS = ("logprobs", "prompt_logprobs")
"""Fields that say how many tokens of the vocabulary to report."""


def _owner(request_id: str | None) -> str:
    return "" if request_id is None else f" of request {request_id!r}"


def _token_ids_of(sampling: SamplingParams) -> Iterable[tuple[str, Sequence[int]]]:
    """(field name, token ids) of each sampling parameter that names tokens."""
    yield "stop_token_ids", sampling.stop_token_ids
    yield "logit_bias", tuple(sampling.logit_bias or ())
    yield "allowed_token_ids", sampling.allowed_token_ids or ()
    for word in sampling.bad_words_token_ids:
        yield "bad_words_token_ids", word


def _check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int, *, of_request: str | None) -> None:
    try:
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size and not _strays(token_ids)):
            return
    except TypeError:
        pass
    wrong = next(token_id for token_id in token_ids if type(token_id) is not int or not 0 <= token_id < vocab_size)
    raise RequestError(
        f"Token id {wrong!r} in {field}{_owner(of_request)} is not in the vocabulary, 0 to {vocab_size - 1}.",
        remedy="Use ids of this model's tokenizer.",
        parameter=None if field == "the prompt" else field,
        token_id=wrong,
        vocab_size=vocab_size,
    )


def _strays(token_ids: Sequence[int]) -> bool:
    """Whether anything but plain whole numbers is among the ids."""
    return any(kind is not int for kind in set(map(type, token_ids)))
