"""POST /v1/chat/completions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import Request, Response

from octavo.engine.conversation import list_conversations
from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.server.answers import chat_logprobs
from octavo.server.bodies import ChatBody, TokenizeBody, check_logprobs
from octavo.server.endpoint import Answer, Endpoint
from octavo.server.failures import speaking_of
from octavo.server.output_forms import wanted_form
from octavo.server.turn_parser import TurnParser, TurnPiece
from octavo.server.turn_reading import TurnReading, checked_tools, turn_reading, with_loaded_arguments
from octavo.structured_outputs import StructuredOutputsParams


class Chats(Endpoint):
    """Writes the model's next turn of a conversation."""

    async def post(self, http: Request, body: ChatBody) -> Response:
        """The answer. Raises `ServerError` and `OctavoError` for what is refused."""
        self.gate.note_unknown(body)
        self.gate.check_model(body.model)
        with speaking_of("messages"):
            prompt = self.render(body)
        tokenizer = self.engine.get_tokenizer()
        reading = turn_reading(self.settings, tokenizer, body, prompt)
        if body.skip_special_tokens is None and reading.needs_special_tokens(tokenizer):
            body = body.model_copy(update={"skip_special_tokens": False})
        form = self._form(body, reading)
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        num_top = body.top_logprobs if body.logprobs else None
        defaults = self.engine.sampling_defaults
        names = body.names_of_forms() | {"logprobs": "top_logprobs"}
        if body.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        with speaking_of("messages", **names):
            check_logprobs("top_logprobs", num_top, self.settings)
            sampling = body.sampling(
                self.settings,
                defaults,
                max_tokens=defaults.get("max_tokens") if max_tokens is None else max_tokens,
                logprobs=(num_top or 0) if body.logprobs else None,
                structured_outputs=form,
            )
            prepared = await self.engine.prepare(
                [prompt], sampling, priority=body.priority or 0, add_special_tokens=False
            )
            requests = self.salted(http, body, prepared)
            return await self.answer(http, body, ChatAnswer(self.gate.names[0], requests, body, reading))

    def _form(self, body: ChatBody, reading: TurnReading) -> StructuredOutputsParams | None:
        """The form that the answer must have. Raises `ServerError` (400) where it can have none."""
        form = wanted_form(body.response_format, body.structured_outputs)
        if body.tool_choice is not None and body.tool_choice not in ("none", "auto"):
            form = reading.forced_call(self.engine.get_tokenizer(), body.tool_choice)
        return form if form is None else reading.behind_reasoning(form)

    def render(self, body: ChatBody | TokenizeBody) -> str:
        """The prompt that the chat template makes of the messages and tools. Raises `RequestError` where it cannot."""
        (messages,) = list_conversations(body.messages or [])
        tools = checked_tools(body.tools or [])
        uses_tools = tools and getattr(body, "tool_choice", None) != "none"
        return self.engine.get_tokenizer().apply_chat_template(
            with_loaded_arguments(messages),
            add_generation_prompt=body.add_generation_prompt is not False,
            tools=tools if uses_tools else None,
            chat_template=self.settings.chat_template,
            **_variables(body.chat_template_kwargs),
        )


class ChatAnswer(Answer):
    """Choices with a `message`, or with what is new of it, a `delta`."""

    prefix, whole_object, piece_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, requests: list[PromptRequest], body: ChatBody, reading: TurnReading) -> None:
        super().__init__(model, requests)
        self._body = body
        self._reading = reading
        self._parsers: dict[int, TurnParser] = {}
        self._num_calls: Counter[int] = Counter()

    def choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        number, parser = self.number(prompt_index, completion), self._reading.parser()
        turn = parser.feed(completion.text).then(parser.end())
        said = self._said(number, turn)
        message = {"role": "assistant", "content": None if turn.calls else "", "refusal": None, **said}
        return self._around(prompt_index, completion, message=message)

    def pieces(self, prompt_index: int, piece: RequestOutput, completion: CompletionOutput) -> list[dict[str, Any]]:
        number = self.number(prompt_index, completion)
        choices = []
        if number not in self._parsers:
            self._parsers[number] = self._reading.parser()
            choices.append(_opening(number))
        news = self._parsers[number].feed(completion.text)
        if completion.finish_reason:
            news = news.then(self._parsers[number].end())
        delta = self._said(number, news)
        if delta or completion.finish_reason or (completion.token_ids and self._body.logprobs):
            choices.append(self._around(prompt_index, completion, delta=delta))
        return choices

    def _said(self, number: int, turn: TurnPiece) -> dict[str, Any]:
        """The fields of a message, or of a delta, of choice `number`."""
        said: dict[str, Any] = {"content": turn.content} if turn.content else {}
        if turn.reasoning and self._reading.shows_reasoning:
            said |= {"reasoning": turn.reasoning, "reasoning_content": turn.reasoning}
        if turn.calls and self._reading.tools is not None:
            first = self._num_calls[number]
            self._num_calls[number] += len(turn.calls)
            said["tool_calls"] = [
                {
                    "index": index,
                    "id": self._reading.tools.new_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(turn.calls, first)
            ]
        return said

    def _around(self, prompt_index: int, completion: CompletionOutput, **content: Any) -> dict[str, Any]:
        has_called = completion.finish_reason == "stop" and self._num_calls[self.number(prompt_index, completion)] > 0
        has_logprobs = self._body.logprobs and completion.logprobs is not None
        choice = {
            "index": self.number(prompt_index, completion),
            **content,
            "logprobs": chat_logprobs(completion.logprobs or [], num_top=self._body.top_logprobs or 0)
            if has_logprobs
            else None,
            "finish_reason": "tool_calls" if has_called else completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice


def _opening(number: int) -> dict[str, Any]:
    return {
        "index": number,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }


def _variables(given: dict[str, Any] | None) -> dict[str, Any]:
    """What a template may be given beside what the server gives it."""
    reserved = {"self", "messages", "tools", "add_generation_prompt", "chat_template"}
    return {name: value for name, value in (given or {}).items() if name not in reserved}
