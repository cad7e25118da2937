"""Sends traffic to a server with OpenAI's API and notes when each token comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import aiohttp
import msgspec

from octavo.cli.traffic import TrafficRequest
from octavo.errors import ConfigError


class Sent(msgspec.Struct):
    """What became of one request. Times are in seconds from the start of the run."""

    num_prompt_tokens: int
    started: float = 0.0
    token_times: list[float] = []
    """When each piece of the answer came."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    ended: float = 0.0
    error: str = ""
    """Why there is no whole answer; empty where there is one."""


class LoadClient:
    """A connection to one server. Owns: its session, while it is open as a context manager."""

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def wait_until_ready(self, seconds: float) -> None:
        """Raises `ConfigError` when no healthy server answers within that time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                async with self._session.get(f"{self.base_url}/health") as answer:
                    if answer.status == 200:
                        return
                    reason = f"/health has status {answer.status}"
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"No server is ready at {self.base_url}: {reason}.", remedy="Start one with: octavo serve MODEL"
                )
            await asyncio.sleep(0.5)

    async def get(self, path: str) -> Any:
        """The document at `path`; None where the server has none there."""
        async with self._session.get(f"{self.base_url}{path}") as answer:
            if answer.status in (401, 403):
                raise ConfigError(f"The server refuses {path} (status {answer.status}).", remedy="Give --api-key.")
            return await answer.json() if answer.status == 200 else None

    async def count_tokens(self, model: str, text: str) -> int | None:
        """Tokens of `text` by POST /tokenize; None where the server has no such route."""
        async with self._session.post(f"{self.base_url}/tokenize", json={"model": model, "prompt": text}) as answer:
            return int((await answer.json())["count"]) if answer.status == 200 else None

    async def send(self, model: str, request: TrafficRequest, more: dict[str, Any], began: float) -> Sent:
        """Stream one completion. A failure is in the result."""
        sent = Sent(request.num_prompt_tokens, started=time.perf_counter() - began)
        body = {
            "model": model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        try:
            async with self._session.post(f"{self.base_url}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    sent.error = f"status {answer.status}: {(await answer.text())[:200]}"
                else:
                    await _read(answer, sent, began)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            sent.error = f"{type(error).__name__}: {error}"
        sent.ended = time.perf_counter() - began
        if not sent.error and not sent.num_output_tokens:
            sent.error = "the stream ended without a token"
        return sent


async def _read(answer: aiohttp.ClientResponse, sent: Sent, began: float) -> None:
    """Note what a stream brings. The usage at its end counts the tokens: a piece may have several, or none."""
    async for line in answer.content:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = time.perf_counter() - began
        event = json.loads(line[6:])
        if "error" in event:
            sent.error = str(event["error"])[:200]
            return
        if event.get("choices"):
            sent.token_times.append(now)
        if usage := event.get("usage"):
            sent.num_output_tokens = usage["completion_tokens"]
            sent.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


async def run_load(
    client: LoadClient,
    model: str,
    requests: Sequence[TrafficRequest],
    times: Sequence[float],
    more: dict[str, Any],
    *,
    max_concurrency: int | None,
    on_done: Callable[[Sent], None],
) -> list[Sent]:
    """Send each request at its time, at most `max_concurrency` at once: those beyond wait here, and their clock does
    not run."""
    gate = asyncio.Semaphore(max_concurrency or len(requests))
    began = time.perf_counter()

    async def one(request: TrafficRequest, at: float) -> Sent:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
        async with gate:
            sent = await client.send(model, request, more, began)
        on_done(sent)
        return sent

    return list(await asyncio.gather(*(one(*each) for each in zip(requests, times, strict=True))))
