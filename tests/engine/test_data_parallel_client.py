"""Several cores in real processes behind one client."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import psutil
import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.engine import process_client
from octavo.engine.data_parallel_client import DataParallelClient, make_core_client
from octavo.engine.process_client import ProcessClient
from octavo.errors import CacheTooSmallError, EngineDeadError, RequestError
from octavo.messages import EngineCoreOutputs, StageReport
from tests.engine.test_process_client import MODULE, Ear, ask


class NumberedEar(Ear):
    """Notes which core said it."""

    def __init__(self) -> None:
        super().__init__()
        self.core_of: dict[str, int] = {}

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        self.core_of.update((output.request_id, outputs.engine) for output in outputs.outputs)
        super().take_outputs(outputs)


def config_of(model: str, num_cores: int) -> EngineConfig:
    return EngineConfig(model=ModelSource(model=model), parallel=ParallelConfig(data_parallel_size=num_cores))


def run_with(
    model: str,
    use: Callable[[DataParallelClient, NumberedEar], Coroutine[Any, Any, None]],
    *,
    num_cores: int = 2,
    **options: Any,
) -> None:
    """Start fake cores, use them, and see that nothing of them is left."""

    async def main() -> None:
        ear = NumberedEar()
        client = DataParallelClient(config_of(model, num_cores), ear, module=MODULE, **options)
        try:
            await client.start()
            await asyncio.wait_for(use(client, ear), 30)
        finally:
            await client.shutdown()
            assert not any(map(psutil.pid_exists, client.pids))

    asyncio.run(main())


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.005)


async def until_idle(client: DataParallelClient) -> None:
    """Prefixes can be forgotten when no core has anything to do."""
    deadline = time.monotonic() + 15
    while not await client.reset_prefix_cache():
        assert time.monotonic() < deadline, "a request goes on that was given up"
        await asyncio.sleep(0.02)


async def finish(ear: NumberedEar, *names: str) -> list[int]:
    await ear.wait(lambda: ear.finished.issuperset(names))
    return [ear.core_of[name] for name in names]


def test_requests_run_on_several_cores_and_equal_beginnings_on_one() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        assert len(set(client.pids)) == 3
        assert sorted(ready.engine for ready in ear.ready) == [0, 1, 2]
        prompts = {name: [number] * 40 for number, name in enumerate("abc", start=65)}
        for name, tokens in prompts.items():
            client.add_requests([ask(name, *tokens, max_tokens=3)])
        cores = dict(zip("abc", await finish(ear, *"abc"), strict=True))
        assert sorted(cores.values()) == [0, 1, 2]
        for name, tokens in prompts.items():
            client.add_requests([ask(name * 2, *tokens, 77, max_tokens=3)])
        assert await finish(ear, "aa", "bb", "cc") == [cores[name] for name in "abc"]
        assert ear.tokens["bb"] == [77, 66, 66]
        assert await client.reset_prefix_cache()

    run_with("fake", use, num_cores=3)


def test_siblings_and_aborts_find_their_core() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        names = [f"r.{index}" for index in range(4)]
        first, *others = (ask(name, *[65] * 900, max_tokens=900) for name in names)
        client.add_requests([first, *(msgspec.structs.replace(other, parent_id="r.0") for other in others)])
        client.add_requests([ask("other", *[66] * 900, max_tokens=900)])
        await ear.wait(lambda: {*names, "other"} <= ear.tokens.keys())
        assert len({ear.core_of[name] for name in names}) == 1
        assert ear.core_of["other"] != ear.core_of["r.0"]
        assert not await client.reset_prefix_cache(), "both are busy"
        assert [report.engine for report in await client.report_memory()] == [0, 1]
        client.abort_requests([*names, "other", "unknown"])
        await until_idle(client)
        assert client.router.loads == [0, 0]

    run_with("fake-slow", use)


def test_a_refusal_comes_back_and_leaves_no_load() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        client.add_requests([ask("refused", 2), ask("a", 65)])
        await ear.wait(lambda: ear.refused)
        await finish(ear, "a")
        assert isinstance(ear.refused["refused"], RequestError)
        assert client.router.loads == [0, 0]

    run_with("fake", use)


def test_what_cannot_be_sent_leaves_nothing_of_its_siblings() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        with pytest.raises((ValueError, OverflowError)):
            client.add_requests([ask("fine", *[65] * 900, max_tokens=900), ask("odd", *[66] * 20, 2**70)])
        with pytest.raises(UnicodeEncodeError):
            client.add_requests([ask("fine", *[65] * 900, max_tokens=900), ask("\ud800", *[66] * 900)])
        assert client.router.loads == [0, 0]
        await until_idle(client)

    run_with("fake-slow", use)


def test_one_core_that_dies_fails_its_requests_and_comes_back_beside_the_others() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        client.add_requests([ask(str(number), *[number] * 400, max_tokens=400) for number in range(65, 69)])
        await ear.wait(lambda: len(ear.tokens) == 4)
        lost = {name for name, core in ear.core_of.items() if core == 1}
        victim = client.pids[1]
        os.kill(victim, signal.SIGKILL)
        await ear.wait(lambda: ear.refused)
        assert client.alive == [0]
        assert set(ear.refused) == lost
        assert all("signal 9" in str(error) for error in ear.refused.values())
        client.add_requests([ask("meanwhile", *[68] * 400, max_tokens=2)])
        assert await finish(ear, "meanwhile") == [0]
        await ear.wait(lambda: len(ear.ready) == 3)
        assert ear.ready[-1].engine == 1
        assert client.pids[1] != victim
        client.add_requests([ask("again", *[99] * 400, max_tokens=2)])
        assert await finish(ear, "again") == [1], "it has nothing to do"
        assert len(ear.tokens[min({"65", "66", "67", "68"} - lost)]) >= 2
        assert not ear.deaths

    run_with("fake-slow", use)


def test_a_core_that_dies_too_often_stays_down_and_the_others_go_on() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        for num_restarts in range(2):
            os.kill(client.pids[0], signal.SIGKILL)
            await until(lambda: client.alive == [1])
            if num_restarts == 0:
                await until(lambda: client.alive == [0, 1])
            else:
                await asyncio.sleep(0.5)
                assert client.alive == [1]
            client.add_requests([ask(f"a{num_restarts}", *[65] * 20, max_tokens=2)])
            await finish(ear, f"a{num_restarts}")

    run_with("fake", use, max_restarts=1)


def test_when_all_are_gone_the_client_has_died() -> None:
    async def use(client: DataParallelClient, ear: NumberedEar) -> None:
        client.add_requests([ask(str(number), *[number] * 400, max_tokens=400) for number in (65, 66)])
        await ear.wait(lambda: len(ear.tokens) == 2)
        for pid in client.pids:
            os.kill(pid, signal.SIGKILL)
        await ear.wait(lambda: ear.deaths)
        assert set(ear.refused) == {"65", "66"}
        client.add_requests([ask("late", 65)])
        assert isinstance(ear.refused["late"], EngineDeadError)
        assert await client.reset_prefix_cache(), "nothing is held by nobody"
        await asyncio.sleep(0.3)
        assert not any(map(psutil.pid_exists, client.pids)), "none is started again"
        assert len(ear.deaths) == 1

    run_with("fake-slow", use)


def test_a_start_that_fails_raises_the_cores_error_and_leaves_nothing() -> None:
    async def main() -> None:
        client = DataParallelClient(config_of("fake-unplannable", 2), Ear(), module=MODULE)
        with pytest.raises(CacheTooSmallError, match="7 bytes"):
            await client.start()
        await client.shutdown()

    asyncio.run(main())
    assert not [
        child for child in psutil.Process().children() if child.is_running() and MODULE in " ".join(child.cmdline())
    ]


def test_the_first_cores_stages_are_told() -> None:
    async def main() -> None:
        stages: list[StageReport] = []
        client = DataParallelClient(config_of("fake", 2), Ear(), module=MODULE)
        await client.start(stages.append)
        assert [stage.name for stage in stages] == ["load_model"]
        await client.shutdown()
        await client.shutdown()

    asyncio.run(main())


def test_the_config_says_which_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "CORE_MODULE", MODULE)
    assert isinstance(make_core_client(config_of("fake", 1), Ear(), max_restarts=3), ProcessClient)
    assert isinstance(make_core_client(config_of("fake", 2), Ear(), max_restarts=3), DataParallelClient)
