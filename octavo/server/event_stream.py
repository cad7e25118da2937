"""Answers that come in pieces, and requests whose client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client has closed its connection: nobody is left to answer."""


class EventStream(Response):
    """Server-sent events: the frames that an iterator makes, as they come.

    Owns: the iterator, which is closed however the answer ends. A client that goes away is noticed at once, even while
    nothing is sent; one that reads slowly makes the iterator wait and nobody else.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            await _cancelled(sending, watching)
            await self._frames.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with contextlib.suppress(OSError):  # the client is gone
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away; raises `ClientGoneError` then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise ClientGoneError
    finally:
        await _cancelled(working, watching)


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """(number of the stream, item), of all streams, as they come. Closing it closes all of them."""
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await _closed(streams)
        return
    waiting = {asyncio.ensure_future(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(_next(streams[index]))] = index
                yield index, item
    finally:
        await _cancelled(*waiting)
        await _closed(streams)


async def _closed(streams: Sequence[AsyncIterator[Any]]) -> None:
    for stream in streams:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _next(stream: AsyncIterator[T]) -> T:
    return await anext(stream)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
