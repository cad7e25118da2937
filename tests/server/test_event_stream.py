"""Streams are closed however they end; tests/server/test_app.py has clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from octavo.server.event_stream import ClientGoneError, EventStream, merged, unless_gone


class Source:
    """Numbers, until it is closed."""

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self.is_closed = False
        self._count, self._pause = count, pause

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._count):
                await asyncio.sleep(self._pause)
                yield number
        finally:
            self.is_closed = True


@pytest.mark.parametrize("counts", [(3,), (2, 3, 0), ()])
def test_streams_are_merged_each_in_its_order(counts: tuple[int, ...]) -> None:
    async def main() -> None:
        sources = [Source(count) for count in counts]
        got: list[list[int]] = [[] for _ in counts]
        async for index, item in merged([source.items() for source in sources]):
            got[index].append(item)
        assert got == [list(range(count)) for count in counts]
        assert all(source.is_closed for source in sources)

    asyncio.run(main())


@pytest.mark.parametrize("num_streams", [1, 3])
def test_closing_the_whole_closes_all_streams(num_streams: int) -> None:
    async def main() -> None:
        sources = [Source(10**9) for _ in range(num_streams)]
        whole = merged([source.items() for source in sources])
        for _ in range(2 * num_streams):
            await anext(whole)
        await whole.aclose()
        assert all(source.is_closed for source in sources)

    asyncio.run(main())


def test_an_error_of_one_stream_closes_the_others() -> None:
    async def main() -> None:
        other = Source(10**9, pause=0.001)

        async def broken() -> AsyncGenerator[int, None]:
            yield 1
            raise ValueError("x")

        with pytest.raises(ValueError, match="x"):
            async for _ in merged([other.items(), broken()]):
                pass
        assert other.is_closed

    asyncio.run(main())


class Gone:
    """A request whose client goes away after a while."""

    async def receive(self) -> dict[str, str]:
        await asyncio.sleep(0.05)
        return {"type": "http.disconnect"}


def test_work_is_cancelled_when_the_client_goes() -> None:
    async def main() -> None:
        was_cancelled = False

        async def work() -> None:
            nonlocal was_cancelled
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                was_cancelled = True
                raise

        with pytest.raises(ClientGoneError):
            await unless_gone(Gone(), work())  # type: ignore[arg-type]
        assert was_cancelled
        assert await unless_gone(Gone(), asyncio.sleep(0, 7)) == 7  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("pause", [0.0, 30.0])
def test_a_client_that_goes_closes_the_stream_even_while_nothing_is_sent(pause: float) -> None:
    async def main() -> None:
        source = Source(10**9, pause=pause)

        async def frames() -> AsyncGenerator[bytes, None]:
            items = source.items()
            try:
                async for _ in items:
                    yield b"x"
            finally:
                await items.aclose()

        async def send(message: object) -> None:
            await asyncio.sleep(0)

        stream = EventStream(frames())
        await asyncio.wait_for(stream({}, Gone().receive, send), 5)
        assert source.is_closed

    asyncio.run(main())
