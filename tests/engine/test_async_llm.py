"""AsyncLLM over a fake core in a real process: its answer is the prompt backwards."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psutil
import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.engine import preparation
from octavo.engine.async_llm import LONG_TEXT
from octavo.engine.engine_state import EngineState
from octavo.engine.outputs import RequestOutput
from octavo.errors import CacheTooSmallError, ConfigError, EngineDeadError, ModelFileError, RequestError
from tests.engine.byte_tokenizer import ByteTokenizer
from tests.engine.fake_process import install_fake_process

LONG = SamplingParams(max_tokens=900, temperature=0)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_process(monkeypatch)


def run_with(use: Callable[[AsyncLLM], Coroutine[Any, Any, None]], model: str = "fake", **options: Any) -> None:
    async def main() -> None:
        async with AsyncLLM(model, **options) as llm:
            await asyncio.wait_for(use(llm), 60)

    asyncio.run(main())


async def last_of(llm: AsyncLLM, prompt: Any, params: SamplingParams = LONG, **more: Any) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params, **more)]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs[-1]


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.005)


def test_texts_ids_and_dicts_are_completed_side_by_side() -> None:
    async def use(llm: AsyncLLM) -> None:
        prompts = ["abc", {"prompt": "def"}, {"prompt_token_ids": [103, 104]}, [105, 106]]
        outputs = await asyncio.gather(*(last_of(llm, prompt) for prompt in prompts))
        assert [output.outputs[0].text for output in outputs] == ["cba", "fed", "hg", "ji"]
        assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}
        assert all(output.metrics.first_token_s for output in outputs)
        assert llm.num_unfinished == 0

    run_with(use)


def test_pieces_add_up_to_the_whole_output() -> None:
    async def use(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=6, n=2, logprobs=1, prompt_logprobs=0)
        whole = await last_of(llm, "abcdefgh", params)
        pieces = [piece async for piece in llm.stream("abcdefgh", params)]
        for index in range(2):
            parts = [part for piece in pieces for part in piece.outputs if part.index == index]
            assert "".join(part.text for part in parts) == whole.outputs[index].text == "hgfedc"
            assert [i for part in parts for i in part.token_ids] == whole.outputs[index].token_ids
            assert [e for part in parts for e in part.logprobs or ()] == whole.outputs[index].logprobs
            assert len(whole.outputs[index].logprobs or ()) == 6
            assert parts[-1].finish_reason == whole.outputs[index].finish_reason == "length"
        assert [piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs] == [whole.prompt_logprobs]
        assert len(whole.prompt_logprobs or ()) == 9
        assert whole.num_cached_tokens == 3
        (request,) = await llm.prepare("abcdefgh", params)
        done = await llm.complete(request)
        assert [output.text for output in done.outputs] == ["hgfedc"] * 2

    run_with(use)


def test_a_stop_string_ends_the_sequence_in_the_core() -> None:
    async def use(llm: AsyncLLM) -> None:
        output = await last_of(llm, "x" * 800 + "abcd", SamplingParams(max_tokens=900, stop="ba"))
        assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("dc", "ba")
        await until(lambda: (stats := llm.stats()) is not None and stats.num_used_blocks == 0)

    run_with(use, "fake-slow")


@pytest.mark.parametrize("how", ["close", "cancel", "abort"])
def test_a_request_that_is_given_up_frees_its_blocks_within_a_step(how: str) -> None:
    async def use(llm: AsyncLLM) -> None:
        stream = llm.stream("a" * 900, LONG, "mine")
        await anext(stream)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        if how == "close":
            await task
            await stream.aclose()  # type: ignore[attr-defined]
        elif how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await llm.abort("mine")
            await llm.abort("unknown")
            with pytest.raises(RequestError, match="'mine' was aborted"):
                await task
        assert llm.num_unfinished == 0
        ended = time.monotonic()
        await until(lambda: (stats := llm.stats()) is not None and stats.num_used_blocks == 0)
        assert time.monotonic() - ended < 2.0
        assert (await last_of(llm, "ab", request_id="mine")).request_id == "mine"

    run_with(use, "fake-slow")


def test_a_slow_reader_finds_larger_pieces_and_keeps_nobody_waiting() -> None:
    async def use(llm: AsyncLLM) -> None:
        slow = llm.stream("".join(map(chr, range(33, 120))) * 3, LONG)
        first = await anext(slow)
        for _ in range(3):
            assert (await last_of(llm, "quick")).outputs[0].text == "kciuq"
        await until(lambda: not llm.num_unfinished)
        rest = [piece async for piece in slow]
        assert len(rest) == 1
        text = first.outputs[0].text + rest[0].outputs[0].text
        assert text == ("".join(map(chr, range(33, 120))) * 3)[::-1]

    run_with(use)


def test_refusals_name_what_is_wrong_and_leave_the_others_alone() -> None:
    async def use(llm: AsyncLLM) -> None:
        other = asyncio.create_task(last_of(llm, "a" * 300))
        with pytest.raises(RequestError, match="has 1500 tokens") as caught:
            await last_of(llm, [5] * 1500)
        assert caught.value.numbers == {"num_prompt_tokens": 1500, "max_model_len": 1000}
        with pytest.raises(RequestError, match="The core refuses it"):
            await last_of(llm, [2, 3], SamplingParams(n=3))
        stream = llm.stream("a" * 300, LONG, "mine")
        await anext(stream)
        with pytest.raises(RequestError, match="'mine' is in use"):
            await last_of(llm, "a", request_id="mine")
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await other).outputs[0].text == "a" * 300
        assert llm.num_unfinished == 0

    run_with(use)


def test_a_salt_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(llm: AsyncLLM) -> None:
        seen = []
        monkeypatch.setattr(llm._client, "add_requests", lambda sequences: seen.extend(sequences))
        task = asyncio.ensure_future(anext(llm.stream("a", LONG, cache_salt="mine", priority=3)))
        await until(lambda: seen)
        assert (seen[0].cache_salt, seen[0].priority) == ("mine", 3)
        task.cancel()

    run_with(use)


def test_a_long_text_is_tokenised_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(llm: AsyncLLM) -> None:
        tokenizer = llm.get_tokenizer()

        def encode(text: str, add_special_tokens: bool = True) -> list[int]:
            time.sleep(0.3)
            return [97] * 5

        monkeypatch.setattr(tokenizer, "encode", encode)
        task = asyncio.create_task(last_of(llm, "a" * LONG_TEXT))
        started = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - started < 0.25, "the event loop was blocked"
        assert (await task).outputs[0].text == "aaaaa"

    run_with(use)


def test_a_killed_core_fails_its_requests_at_once_and_is_started_again() -> None:
    async def use(llm: AsyncLLM) -> None:
        streams = [llm.stream("a" * 900, LONG) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        first = llm.core_pid
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="signal 9"):
                async for _ in stream:
                    pass
        assert time.monotonic() - killed < 1.0
        assert llm.state is EngineState.RESTARTING
        with pytest.raises(EngineDeadError, match="starting"):
            await last_of(llm, "ab")
        await until(lambda: llm.state is EngineState.RUNNING)
        assert llm.core_pid != first
        assert (await last_of(llm, "ab")).outputs[0].text == "ba"

    run_with(use, "fake-slow")


def test_a_core_that_dies_again_and_again_stays_down() -> None:
    async def use(llm: AsyncLLM) -> None:
        for _ in range(3):
            with pytest.raises(EngineDeadError, match="signal 9"):
                await last_of(llm, [0, 5, 5])
            await until(lambda: llm.state is not EngineState.RESTARTING)
        assert llm.state is EngineState.DEAD
        with pytest.raises(EngineDeadError, match="3 times in a row"):
            await last_of(llm, "ab")

    run_with(use, max_restarts=2)


def test_a_core_that_breaks_says_why() -> None:
    async def use(llm: AsyncLLM) -> None:
        with pytest.raises(EngineDeadError, match="ValueError: a bug"):
            await last_of(llm, [1])
        await until(lambda: llm.state is EngineState.RUNNING)

    run_with(use)


def test_kills_at_random_moments_leave_nothing_hanging() -> None:
    async def use(llm: AsyncLLM) -> None:
        for round_ in range(5):
            await until(lambda: llm.state is EngineState.RUNNING)
            tasks = [asyncio.create_task(last_of(llm, "a" * 200)) for _ in range(8)]
            await asyncio.sleep(0.007 * round_)
            os.kill(llm.core_pid, signal.SIGKILL)
            for end in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5):
                assert isinstance(end, EngineDeadError) or end.outputs[0].text == "a" * 200  # type: ignore[union-attr]
            await until(lambda: llm.num_unfinished == 0)
            await until(lambda: llm.state is not EngineState.RUNNING or psutil.pid_exists(llm.core_pid))

    run_with(use, "fake-slow", max_restarts=9)


def test_drain_waits_for_what_is_under_way() -> None:
    async def use(llm: AsyncLLM) -> None:
        assert await llm.drain(0.1)
        task = asyncio.create_task(last_of(llm, "a" * 20))
        await until(lambda: llm.num_unfinished)
        assert not await llm.drain(0.05)
        assert await llm.drain()
        assert (await task).outputs[0].text == "a" * 20

    run_with(use, "fake-slow")


def test_requests_under_way_fail_at_shutdown_and_it_stays_down() -> None:
    async def main() -> None:
        llm = AsyncLLM("fake-slow")
        with pytest.raises(EngineDeadError, match="starting"):
            await last_of(llm, "a")
        await llm.start()
        await llm.start()
        stream = llm.stream("a" * 900, LONG)
        await anext(stream)
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await anext(stream)
        with pytest.raises(EngineDeadError, match="shut down"):
            await last_of(llm, "a")
        await llm.shutdown()
        assert not psutil.pid_exists(llm.core_pid)

    asyncio.run(main())


def test_a_start_that_fails_raises_the_cores_error() -> None:
    with pytest.raises(ConfigError, match="no option of an engine"):
        AsyncLLM("fake", max_models=3)  # type: ignore[call-arg]

    async def main() -> None:
        await AsyncLLM("fake-unplannable").start()

    with pytest.raises(CacheTooSmallError, match="7 bytes"):
        asyncio.run(main())


def test_it_knows_the_model_and_resets_prefixes() -> None:
    async def use(llm: AsyncLLM) -> None:
        assert (llm.model_name, llm.max_model_len, llm.vocab_size) == ("fake", 1000, 320)
        assert llm.plan.figures.usable_blocks == 99
        assert await llm.reset_prefix_cache()

    run_with(use)


def test_a_core_that_dies_while_the_tokenizer_is_read_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        llm = AsyncLLM("fake")

        def load(files: Any, **_: Any) -> Any:
            deadline = time.monotonic() + 10
            while not (hasattr(llm, "_client") and llm._client._ready.done()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.kill(llm.core_pid, signal.SIGKILL)
            time.sleep(0.5)
            return ByteTokenizer()

        monkeypatch.setattr(preparation, "load_tokenizer", load)
        with pytest.raises(EngineDeadError, match="signal 9"):
            await llm.start()

    asyncio.run(main())


def test_a_tokenizer_that_cannot_be_read_leaves_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(files: Any, **_: Any) -> Any:
        raise ModelFileError("The tokenizer is damaged.")

    monkeypatch.setattr(preparation, "load_tokenizer", load)

    async def main() -> None:
        llm = AsyncLLM("fake")
        with pytest.raises(ModelFileError, match="damaged"):
            await llm.start()
        assert not psutil.pid_exists(llm.core_pid)

    asyncio.run(main())


def test_several_cores_are_one_engine() -> None:
    async def use(llm: AsyncLLM) -> None:
        assert llm.max_num_seqs == 2 * 128
        outputs = await asyncio.gather(*(last_of(llm, chr(letter) * 40 + "xy") for letter in range(97, 105)))
        assert [output.outputs[0].text for output in outputs] == ["yx" + chr(n) * 40 for n in range(97, 105)]
        (stats,) = [llm.stats()]
        assert stats is not None and stats.num_blocks == 200, "the sum over both"
        assert await llm.reset_prefix_cache()

    run_with(use, data_parallel_size=2)


def test_one_of_several_cores_dies_and_the_engine_stays_up() -> None:
    async def use(llm: AsyncLLM) -> None:
        tasks = [asyncio.create_task(last_of(llm, chr(letter) * 300)) for letter in range(97, 101)]
        await until(lambda: (stats := llm.stats()) is not None and stats.num_running == 4)
        os.kill(llm.core_pid, signal.SIGKILL)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["EngineDeadError"] * 2 + ["RequestOutput"] * 2
        assert llm.state is EngineState.RUNNING
        assert (await last_of(llm, "ab")).outputs[0].text == "ba"
        await until(lambda: len(llm._client.alive) == 2)

    run_with(use, "fake-slow", data_parallel_size=2)


def test_all_of_several_cores_die_and_are_started_again() -> None:
    async def use(llm: AsyncLLM) -> None:
        for pid in llm._client.pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: llm.state is EngineState.RESTARTING)
        await until(lambda: llm.state is EngineState.RUNNING)
        assert (await last_of(llm, "ab")).outputs[0].text == "ba"

    run_with(use, data_parallel_size=2)
