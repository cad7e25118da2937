"""A server that misbehaves costs a request, not the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from octavo.cli.load_client import LoadClient, Sent, run_load
from octavo.cli.traffic import TrafficRequest

REQUEST = TrafficRequest(prompt="a", num_prompt_tokens=1, max_tokens=2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "ServerDisconnectedError"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "status 503: busy"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\n", "without a token"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\ndata: {"error": 1}\n\n', "1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: ", "Payload"),
    ],
)
def test_each_failure_is_in_its_own_result(answer: bytes, error: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main(serve: Callable[..., object]) -> list[Sent]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
        port = server.sockets[0].getsockname()[1]
        done: list[Sent] = []
        async with server, LoadClient(f"http://127.0.0.1:{port}/v1", api_key=None, timeout_s=10) as client:
            sent = await run_load(client, "m", [REQUEST] * 2, [0.0, 0.0], {}, max_concurrency=None, on_done=done.append)
        assert len(done) == 2
        return sent

    sent = asyncio.run(main(serve))
    assert [error in one.error for one in sent] == [True, True], sent
