"""Request bodies: the fields that clients send, and what they mean to the engine.

A field that is not here is accepted and logged once: clients send what other servers know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from octavo.parameters import shown
from octavo.request import SamplingParams
from octavo.server.failures import ServerError
from octavo.server.output_forms import wanted_form
from octavo.server.settings import ServerSettings

PASSED_ON = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "include_stop_str_in_output", "truncate_prompt_tokens", "allowed_token_ids",
    "bad_words",
)  # fmt: skip
"""Fields that are `SamplingParams`' own."""


class StreamOptions(BaseModel):
    """What a stream has beside text."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(BaseModel):
    """What completions and chats have in common. An absent field, and null, take the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[str, float] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None
    cache_salt: str | None = None
    public_prefix: bool | None = None
    priority: int | None = None
    return_token_ids: bool | None = None

    def sampling(self, settings: ServerSettings, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
        """How to choose tokens; `more` are fields whose meaning differs between endpoints, and `defaults` stand for
        what the body says nothing of.

        Raises `RequestError` for what `SamplingParams` refuses, and `ServerError` above a limit of the server.
        """
        given = {name: value for name in PASSED_ON if (value := getattr(self, name)) is not None}
        fields = {**defaults, **given}
        if self.logit_bias is not None:
            fields["logit_bias"] = {_token_id(text): bias for text, bias in self.logit_bias.items()}
        form = wanted_form(self.response_format, self.structured_outputs)
        if form is not None:
            fields["structured_outputs"] = form
        fields |= more
        check_limit("n", fields.get("n", 1), settings.max_completions)
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        check_limit("stop", len(stops), settings.max_stops, "texts")
        check_limit("stop", max(map(len, stops), default=0), 100 * settings.max_stops, "characters in one text")
        for name in ("logprobs", "prompt_logprobs"):
            check_logprobs(name, fields.get(name), settings)
        return SamplingParams(**fields)

    def names_of_forms(self) -> dict[str, str]:
        """What the client called the form of its output, where not `structured_outputs`."""
        if self.structured_outputs is not None:
            return {}
        return {"structured_outputs": "response_format" if self.response_format is not None else "tools"}

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_running_usage(self) -> bool:
        """Whether each piece of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None


class TokenizeBody(BaseModel):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: list[int]


def check_limit(name: str, given: int, limit: int, unit: str = "") -> None:
    """Raises `ServerError` (400) where a number, or how many of `unit` a field has, is above a limit of the server."""
    if given > limit:
        said = f"has {given} {unit}" if unit else f"is {shown(given)}"
        raise ServerError(400, f"{name} {said}, and this server allows at most {limit}.", param=name)


def check_logprobs(name: str, given: int | None, settings: ServerSettings) -> None:
    """Raises `ServerError` (400) for more log probabilities than the server allows; -1 is those of every token."""
    if given is None or settings.max_logprobs < 0:
        return
    if given < 0:
        raise ServerError(
            400, f"{name} is {shown(given)}, and this server allows 0 to {settings.max_logprobs}.", param=name
        )
    check_limit(name, given, settings.max_logprobs)


def _token_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ServerError(400, f"logit_bias has {text!r:.60}, which is no token id.", param="logit_bias") from None
