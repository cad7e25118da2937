"""A mailbox puts several steps' news together; tests/engine/test_async_llm.py has readers and writers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.engine.input_processor import PromptRequest
from octavo.engine.mailbox import Mailbox
from octavo.engine.output_processor import CompletionUpdate
from octavo.engine.outputs import Logprob, RequestOutput
from octavo.errors import InvariantError, RequestError
from octavo.request import FinishReason, SamplingParams

REQUEST = PromptRequest(request_id="7", prompt="p", prompt_token_ids=[1, 2], sampling=SamplingParams())
WHOLE = RequestOutput(request_id="7", prompt="p", prompt_token_ids=[1, 2], outputs=[], finished=True)


def _update(index: int, text: str, token: int, **more: Any) -> CompletionUpdate:
    entry = {token: Logprob(logprob=-1.0, rank=1, decoded_token=text)}
    return CompletionUpdate(
        request_id="7", index=index, text=text, token_ids=[token], logprobs=[entry], **{"finish_reason": None, **more}
    )


def test_news_since_the_last_look_are_one_piece_a_completion() -> None:
    async def main() -> None:
        box = Mailbox(REQUEST, "mine")
        box.put(_update(1, "x", 24))
        box.put(_update(0, "a", 1, num_cached_tokens=2, prompt_logprobs=[None, {}]))
        box.put(_update(0, "b", 2, num_cached_tokens=2))
        piece = await box.take()
        assert [(part.index, part.text, part.token_ids) for part in piece.outputs] == [
            (0, "ab", [1, 2]),
            (1, "x", [24]),
        ]
        assert [list(entry) for entry in piece.outputs[0].logprobs or ()] == [[1], [2]]
        assert (piece.prompt_logprobs, piece.num_cached_tokens, piece.finished) == ([None, {}], 2, False)
        box.put(_update(0, "c", 3, finish_reason=FinishReason.STOP, stop_reason="c"))
        box.finish(WHOLE)
        assert box.has_ended
        piece = await box.take()
        assert (piece.outputs[0].text, piece.outputs[0].stop_reason, piece.finished) == ("c", "c", True)
        assert piece.prompt_logprobs is None
        assert await box.whole() is WHOLE

    asyncio.run(main())


def test_an_error_reaches_the_reader_before_unread_news_and_after_the_end_never() -> None:
    async def main() -> None:
        box = Mailbox(REQUEST, "mine")
        box.put(_update(0, "a", 1))
        box.fail(RequestError("It broke."))
        for read in (box.take, box.whole):
            with pytest.raises(RequestError, match="It broke"):
                await read()
        done = Mailbox(REQUEST, "mine")
        done.finish(WHOLE)
        done.fail(RequestError("too late"))
        assert await done.whole() is WHOLE

    asyncio.run(main())


def test_a_reader_waits_for_news() -> None:
    async def main() -> None:
        box = Mailbox(REQUEST, "mine")
        reading = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        assert not reading.done()
        box.put(_update(0, "a", 1))
        assert (await reading).outputs[0].text == "a"

    asyncio.run(main())


def test_an_end_without_an_output_is_a_bug() -> None:
    async def main() -> None:
        box = Mailbox(REQUEST, "mine")
        box._has_ended.set()
        with pytest.raises(InvariantError):
            await box.whole()

    asyncio.run(main())
