"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.engine.tokenizer import Tokenizer
from octavo.server.answers import completion_logprobs
from octavo.server.bodies import CompletionBody, check_limit
from octavo.server.endpoint import Answer, Endpoint
from octavo.server.failures import ServerError, speaking_of


class Completions(Endpoint):
    """Completes texts and token ids."""

    async def post(self, http: Request, body: CompletionBody) -> Response:
        """The answer. Raises `ServerError` and `OctavoError` for what is refused."""
        self.gate.note_unknown(body)
        self.gate.check_model(body.model)
        if body.suffix:
            raise ServerError(400, "suffix is not supported: write the whole prompt yourself.", param="suffix")
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise ServerError(400, f"best_of is {body.best_of}; only the value of n is supported.", param="best_of")
        check_limit("prompt", _num_prompts(body.prompt), self.settings.max_completions, "prompts")
        echoes_only = bool(body.echo) and body.max_tokens == 0
        prompt_logprobs = body.logprobs if body.echo and body.prompt_logprobs is None else body.prompt_logprobs
        sampling = body.sampling(
            self.settings,
            self.engine.sampling_defaults,
            max_tokens=1 if echoes_only else 16 if body.max_tokens is None else body.max_tokens,
            logprobs=body.logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        with speaking_of("prompt", **body.names_of_forms()):
            prepared = await self.engine.prepare(
                body.prompt,
                sampling,
                priority=body.priority or 0,
                add_special_tokens=body.add_special_tokens is not False,
            )
            requests = self.salted(http, body, prepared)
            return await self.answer(
                http, body, CompletionAnswer(self.gate.names[0], requests, body, self.engine.get_tokenizer())
            )


class CompletionAnswer(Answer):
    """Choices with `text`."""

    prefix, whole_object, piece_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, requests: list[PromptRequest], body: CompletionBody, tokenizer: Tokenizer) -> None:
        super().__init__(model, requests)
        self._body = body
        self._tokenizer = tokenizer
        self._echoes_only = bool(body.echo) and body.max_tokens == 0
        self._offsets: dict[int, int] = {}
        """Characters of each choice that a stream has shown."""

    def choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        return self._choice(prompt_index, output, completion, is_first=True)

    def pieces(self, prompt_index: int, piece: RequestOutput, completion: CompletionOutput) -> list[dict[str, Any]]:
        number = self.number(prompt_index, completion)
        choice = self._choice(prompt_index, piece, completion, is_first=number not in self._offsets)
        is_news = choice["text"] or choice["finish_reason"] or choice["logprobs"] or completion.token_ids
        return [choice] if is_news else []

    def _choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput, *, is_first: bool
    ) -> dict[str, Any]:
        request, number = self.requests[prompt_index], self.number(prompt_index, completion)
        if self._echoes_only:
            completion = msgspec.structs.replace(completion, text="", token_ids=[], logprobs=completion.logprobs and [])
        echo = self._prompt_text(request) if self._body.echo and is_first else ""
        offset = self._offsets.get(number, 0)
        choice: dict[str, Any] = {
            "index": number,
            "text": echo + completion.text,
            "logprobs": self._logprobs(request, output, completion, offset, echoes=bool(echo)),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        self._offsets[number] = offset + len(choice["text"])
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
            choice["prompt_token_ids"] = request.prompt_token_ids if is_first else None
        if output.prompt_logprobs is not None and self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = [
                None
                if entry is None
                else {str(token_id): msgspec.to_builtins(place) for token_id, place in entry.items()}
                for entry in output.prompt_logprobs
            ]
        return choice

    def _logprobs(
        self, request: PromptRequest, output: RequestOutput, completion: CompletionOutput, offset: int, *, echoes: bool
    ) -> dict[str, Any] | None:
        num_top = self._body.logprobs
        if num_top is None:
            return None
        entries: list[Any] = list(completion.logprobs or [])
        token_ids = list(completion.token_ids)
        if echoes and output.prompt_logprobs is not None:
            entries = [*output.prompt_logprobs, *entries]
            token_ids = [*request.prompt_token_ids, *token_ids]
        texts = [
            self._token_text(token_id) if entry is None else entry[token_id].decoded_token
            for token_id, entry in zip(token_ids, entries, strict=True)
        ]
        return completion_logprobs(texts, entries, num_top=num_top, offset=offset)

    def _prompt_text(self, request: PromptRequest) -> str:
        return self._tokenizer.decode(request.prompt_token_ids) if request.prompt is None else request.prompt

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def _num_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
