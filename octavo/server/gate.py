"""How many requests may wait, how long one may take, and what all of them share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from pydantic import BaseModel

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import RequestOutput
from octavo.server.failures import RETRY_AFTER_S, ServerError
from octavo.server.settings import ServerSettings

TIMEOUT_HEADER = "X-Request-Timeout"
"""The seconds that a client gives its request."""

_MAX_LOGGED = 1000
"""Unknown fields of which is known that they were logged; more are not."""

logger = logging.getLogger(__name__)


class Gate:
    """Owns: the number of sequences under way, and which unknown fields were logged. Never: reorders requests.

    Parameters:
        on_refusal: called for each request that finds too many waiting.
    """

    def __init__(
        self, engine: AsyncLLM, settings: ServerSettings, *, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._on_refusal = on_refusal
        self._logged: set[str] = set()
        self.num_sequences = 0
        """Sequences of all requests that have come in and not been answered."""
        self.is_closed = False
        """Whether the server is ending: what comes now is refused."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the model may be called, the first in answers."""
        return self._settings.served_model_names or (self._engine.model_name,)

    def check_model(self, name: str | None) -> None:
        """Raises `ServerError` (404) when a request names another model."""
        if name is not None and name not in self.names:
            raise ServerError(
                404,
                f"The model {name!r:.80} does not exist; this server has {', '.join(self.names)}.",
                kind="not_found_error",
                param="model",
                code="model_not_found",
            )

    def note_unknown(self, body: BaseModel) -> None:
        """Log the fields that nothing here knows, the first time each comes: one line for a request."""
        names = sorted(set(body.model_extra or ()) - self._logged)[: _MAX_LOGGED - len(self._logged)]
        if not names:
            return
        self._logged.update(names)
        told = ", ".join(f"{name!r:.80}" for name in names[:10]) + (f" and {len(names) - 10} more" * (len(names) > 10))
        subject = f"fields {told}, which have" if len(names) > 1 else f"field {told}, which has"
        logger.warning("Requests have the %s no effect here.", subject)

    @contextlib.asynccontextmanager
    async def passing(self, requests: list[PromptRequest]) -> AsyncIterator[None]:
        """Count `requests` in while the block runs.

        Raises `ServerError`: 429 when too many wait already, 503 when the server is ending.
        """
        if self.is_closed:
            raise ServerError(
                503, "The server is ending.", kind="service_unavailable", code="shutting_down", retry_after_s=10
            )
        num_new = sum(request.sampling.n for request in requests)
        room = self._engine.max_num_seqs + self._settings.max_waiting
        if self.num_sequences and self.num_sequences + num_new > room:
            self._on_refusal()
            raise ServerError(
                429,
                f"{self.num_sequences} sequences are under way, and this server takes {room}: "
                f"{self._engine.max_num_seqs} that run and {self._settings.max_waiting} that wait.",
                kind="rate_limit_exceeded",
                code="too_many_requests",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_sequences += num_new
        try:
            yield
        finally:
            self.num_sequences -= num_new

    def seconds_for(self, wanted: str | None) -> float | None:
        """How long a request may take that asks for `wanted` seconds: no longer than the server lets any; None is for
        ever. Raises `ServerError` (400) for what is no number of seconds."""
        own = self._settings.request_timeout_s
        if wanted is None:
            return own
        try:
            seconds = float(wanted)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise ServerError(
                400,
                f"{TIMEOUT_HEADER} is {wanted!r:.40}; it must be a number of seconds above 0.",
                param=TIMEOUT_HEADER,
            )
        return seconds if own is None else min(seconds, own)

    async def complete(self, requests: list[PromptRequest], seconds: float | None) -> list[RequestOutput]:
        """The whole outputs, in order; when one fails, or the time is over, the others are ended."""
        async with self.passing(requests), asyncio.timeout(seconds):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._engine.complete(request)) for request in requests]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            return [task.result() for task in tasks]

    @staticmethod
    async def bounded(stream: AsyncGenerator[bytes, None], seconds: float | None) -> AsyncGenerator[bytes, None]:
        """`stream`, ended with `TimeoutError` when it takes longer."""
        # Not by asyncio.timeout: the tasks that read a stream change.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds if seconds is not None else None
        try:
            while True:
                try:
                    if deadline is None:
                        item = await anext(stream)
                    else:
                        item = await asyncio.wait_for(anext(stream), deadline - loop.time())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await stream.aclose()
