"""What completions and chats do alike: check, generate, and answer whole or in pieces."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from fastapi import Request, Response

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.input_processor import PromptRequest, check_text
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.server.access import Access
from octavo.server.answers import DONE, UsageCount, frame, new_id, unix_time
from octavo.server.bodies import GenerationBody, check_limit
from octavo.server.event_stream import ClientGoneError, EventStream, merged, unless_gone
from octavo.server.failures import ServerError, failure_of, speaking_of
from octavo.server.gate import TIMEOUT_HEADER, Gate
from octavo.server.settings import ServerSettings

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status of an answer that nobody receives."""


class Answer(ABC):
    """One HTTP request's answer, in the making. Owns: its usage, and where each of its choices stands."""

    prefix: str
    """What its id begins with."""
    whole_object: str
    piece_object: str

    def __init__(self, model: str, requests: list[PromptRequest]) -> None:
        self.id = new_id(self.prefix)
        self.created = unix_time()
        self.model = model
        self.requests = requests
        self.usage = UsageCount()
        for request in requests:
            self.usage.add_prompt(len(request.prompt_token_ids))

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What stands around choices."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def number(self, prompt_index: int, output: CompletionOutput) -> int:
        """The number of a choice: the completions of one prompt stand together."""
        return prompt_index * self.requests[0].sampling.n + output.index

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The document of an answer that comes at once."""
        choices = []
        for index, output in enumerate(outputs):
            self.usage.add(index, output.outputs)
            choices += [self.choice(index, output, completion) for completion in output.outputs]
        return {**self.envelope(self.whole_object, choices), "usage": self.usage.document()}

    @abstractmethod
    def choice(self, prompt_index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """One choice of the whole answer."""

    @abstractmethod
    def pieces(self, prompt_index: int, piece: RequestOutput, completion: CompletionOutput) -> list[dict[str, Any]]:
        """What a stream says of what is new of one completion: choices, each for a frame of its own."""


class Endpoint:
    """Owns: nothing of a request. Never: lets one go on whose client is gone."""

    def __init__(self, engine: AsyncLLM, gate: Gate, access: Access, settings: ServerSettings) -> None:
        self.engine = engine
        self.gate = gate
        self.access = access
        self.settings = settings

    def salted(self, http: Request, body: GenerationBody, requests: list[PromptRequest]) -> list[PromptRequest]:
        """`requests` with their owner and his salt. Raises `ServerError` where there are too many, or none."""
        check_limit("prompt", len(requests), self.settings.max_completions, "prompts")
        if not requests:
            raise ServerError(400, "There is no prompt.", param="prompt")
        if body.cache_salt is not None:
            with speaking_of("cache_salt"):
                check_text(body.cache_salt, "cache_salt")
            if not body.cache_salt:
                raise ServerError(400, "cache_salt is empty. Give a text, or leave it out.", param="cache_salt")
        owner = http.state.owner
        salt = self.access.salt_of(owner, body.cache_salt, is_public=body.public_prefix is True)
        return [msgspec.structs.replace(request, cache_salt=salt, owner=owner) for request in requests]

    async def answer(self, http: Request, body: GenerationBody, answer: Answer) -> Response:
        """Generate, and answer as the client wants it. Raises what the engine refuses before the first byte."""
        seconds = self.gate.seconds_for(http.headers.get(TIMEOUT_HEADER))
        if not body.stream:
            try:
                outputs = await unless_gone(http, self.gate.complete(answer.requests, seconds))
            except ClientGoneError:
                return Response(status_code=CLIENT_GONE)
            return Response(msgspec.json.encode(answer.whole(outputs)), media_type="application/json")
        frames = self.gate.bounded(self._frames(body, answer), seconds)
        try:
            first = await unless_gone(http, anext(frames))
        except ClientGoneError:
            await frames.aclose()
            return Response(status_code=CLIENT_GONE)
        return EventStream(_safely(first, frames))

    async def _frames(self, body: GenerationBody, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The frames of a stream but the last."""
        streams: list[AsyncIterator[RequestOutput]] = [self.engine.stream(request) for request in answer.requests]
        news = merged(streams)
        async with self.gate.passing(answer.requests):
            try:
                async for index, piece in news:
                    answer.usage.add(index, piece.outputs)
                    for completion in piece.outputs:
                        for choice in answer.pieces(index, piece, completion):
                            yield frame(self._piece(body, answer, [choice]))
            finally:
                await news.aclose()
        if body.wants_usage:
            yield frame({**answer.envelope(answer.piece_object, []), "usage": answer.usage.document()})

    def _piece(self, body: GenerationBody, answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document = answer.envelope(answer.piece_object, choices)
        if body.wants_running_usage:
            document["usage"] = answer.usage.document()
        elif body.wants_usage:
            document["usage"] = None
        return document


async def _safely(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """All frames and the mark of the end; an error that comes on the way is one of them."""
    try:
        yield first
        async for item in frames:
            yield item
    except Exception as error:
        failure = failure_of(error)
        if failure.status == 500:
            logger.exception("A stream failed.")
        yield frame(failure.body())
    finally:
        await frames.aclose()
    yield DONE
