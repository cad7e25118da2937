"""What has come for one request since its reader last looked.

News of several steps is put together, so a reader that is slow finds one larger piece, holds no more than the request's
own output, and keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from octavo.engine.input_processor import PromptRequest
from octavo.engine.output_processor import CompletionUpdate
from octavo.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from octavo.errors import InvariantError, OctavoError


class Mailbox:
    """Owns: the news of one request that has not been read, and its end. Never: blocks whoever puts something in."""

    def __init__(self, request: PromptRequest, name: str) -> None:
        self.request = request
        self.name = name
        """What its caller calls the request."""
        self._updates: dict[int, list[CompletionUpdate]] = {}
        """By number of the completion."""
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._final: RequestOutput | None = None
        self._error: OctavoError | None = None
        self._has_news = asyncio.Event()
        self._has_ended = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether the request has ended, well or not; its last news may be unread."""
        return self._has_ended.is_set()

    def put(self, update: CompletionUpdate) -> None:
        """What one step added to one completion."""
        self._updates.setdefault(update.index, []).append(update)
        self._prompt_logprobs = update.prompt_logprobs or self._prompt_logprobs
        self._has_news.set()

    def finish(self, output: RequestOutput) -> None:
        """The request has ended well; `output` is all of it."""
        self._final = output
        self._has_news.set()
        self._has_ended.set()

    def fail(self, error: OctavoError) -> None:
        """The request has ended with `error`."""
        if not self.has_ended:
            self._error = error
            self._has_news.set()
            self._has_ended.set()

    async def whole(self) -> RequestOutput:
        """The whole output, once the request has ended. Raises its error."""
        await self._has_ended.wait()
        if self._error is not None:
            raise self._error
        if self._final is None:
            raise InvariantError(f"request {self.request.request_id} has ended without an output")
        return self._final

    async def take(self) -> RequestOutput:
        """What is new since the last call, as soon as there is anything: each completion in `outputs` holds new text,
        tokens and log probabilities alone. `finished` is true in the last one. Raises the request's error."""
        await self._has_news.wait()
        self._has_news.clear()
        if self._error is not None:
            raise self._error
        updates, self._updates = self._updates, {}
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        outputs = [_joined(updates[index]) for index in sorted(updates)]
        final = self._final
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=final is not None,
            num_cached_tokens=max((output.num_cached_tokens for output in outputs), default=0),
            metrics=RequestMetrics() if final is None else final.metrics,
        )


def _joined(updates: list[CompletionUpdate]) -> CompletionOutput:
    last = updates[-1]
    has_logprobs = last.logprobs is not None
    return CompletionOutput(
        index=last.index,
        text="".join(update.text for update in updates),
        token_ids=list(itertools.chain.from_iterable(update.token_ids for update in updates)),
        logprobs=list(itertools.chain.from_iterable(update.logprobs or () for update in updates))
        if has_logprobs
        else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_cached_tokens=last.num_cached_tokens,
    )


def grown(before: CompletionOutput | None, new: CompletionOutput) -> CompletionOutput:
    """A completion with what is new of it appended."""
    if before is None:
        return new
    logprobs = None if new.logprobs is None else [*(before.logprobs or ()), *new.logprobs]
    return msgspec.structs.replace(
        new, text=before.text + new.text, token_ids=[*before.token_ids, *new.token_ids], logprobs=logprobs
    )
