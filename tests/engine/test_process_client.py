"""A core in a real process: started, asked, killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.engine.log_format import set_up_logging
from octavo.engine.process_client import LONGEST_PATH, ProcessClient, _private_folder
from octavo.errors import CacheTooSmallError, EngineDeadError, ExecutorError, OctavoError, RequestError
from octavo.messages import CoreReady, EngineCoreOutputs, EngineCoreRequest, StageReport
from octavo.request import SamplingParams
from tests.engine.fake_plan import FAKE_PLAN

MODULE = "tests.engine.fake_core_process"


class Ear:
    """Notes all that is said."""

    def __init__(self) -> None:
        self.ready: list[CoreReady] = []
        self.tokens: dict[str, list[int]] = {}
        self.refused: dict[str, OctavoError] = {}
        self.deaths: list[EngineDeadError] = []
        self.finished: set[str] = set()
        self.last: EngineCoreOutputs | None = None
        self.changed = asyncio.Event()

    def take_ready(self, ready: CoreReady) -> None:
        self.ready.append(ready)
        self.changed.set()

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        self.last = outputs
        for output in outputs.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.finished.add(output.request_id)
        self.changed.set()

    def take_refusal(self, request_id: str, error: OctavoError) -> None:
        self.refused[request_id] = error
        self.changed.set()

    def take_death(self, error: EngineDeadError) -> None:
        self.deaths.append(error)
        self.changed.set()

    async def wait(self, holds: Callable[[], object]) -> None:
        while not holds():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)


def run_with(model: str, use: Callable[[ProcessClient, Ear], Coroutine[Any, Any, None]]) -> None:
    """Start a fake core, use it, and see that nothing of it is left."""

    async def main() -> None:
        ear = Ear()
        client = ProcessClient(EngineConfig(model=ModelSource(model=model)), ear, module=MODULE)
        try:
            await client.start()
            await use(client, ear)
        finally:
            await client.shutdown()
            assert not psutil.pid_exists(client.pid)
            assert not client._folder.exists()

    asyncio.run(main())


def ask(name: str, *prompt: int, max_tokens: int = 50) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name, prompt_token_ids=list(prompt), sampling=SamplingParams(max_tokens=max_tokens)
    )


def test_requests_run_in_another_process() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        assert client.pid != os.getpid()
        client.add_requests([ask("a", 65, 66, max_tokens=3), ask("refused", 2)])
        await ear.wait(lambda: "a" in ear.tokens and len(ear.tokens["a"]) == 3 and ear.refused)
        assert ear.tokens["a"] == [66, 65, 257]
        error = ear.refused["refused"]
        assert isinstance(error, RequestError)
        assert (error.parameter, error.numbers) == ("n", {"asked": 7})
        assert await client.reset_prefix_cache()
        (report,) = await client.report_memory()
        assert (report.num_blocks, report.storage_bytes) == (100, 819200)

    run_with("fake", use)


def test_the_start_tells_stages_and_the_plan() -> None:
    async def main() -> None:
        stages: list[StageReport] = []
        ear = Ear()
        client = ProcessClient(EngineConfig(model=ModelSource(model="fake")), ear, module=MODULE)
        ready = await client.start(stages.append)
        assert ear.ready == [ready]
        assert [stage.name for stage in stages] == ["load_model"]
        assert ready.plan == FAKE_PLAN
        mode = stat.S_IMODE(client._folder.stat().st_mode)
        assert mode == 0o700
        await client.shutdown()
        await client.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("fake-unplannable", CacheTooSmallError, "It needs 7 bytes. Give 8."),
        ("fake-bug", ExecutorError, "ZeroDivisionError: by accident"),
        ("fake-dies", EngineDeadError, "signal 9"),
    ],
)
def test_a_start_that_fails_raises_the_cores_own_error(model: str, kind: type[OctavoError], words: str) -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        raise AssertionError("it started")

    with pytest.raises(kind, match=words.replace(".", r"\.")) as caught:
        run_with(model, use)
    if kind is CacheTooSmallError:
        assert caught.value.numbers == {"needed_bytes": 7, "sizes": [1, 2]}


def test_a_killed_core_is_noticed_within_a_second() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        os.kill(client.pid, signal.SIGKILL)
        killed = time.monotonic()
        await ear.wait(lambda: ear.deaths)
        assert time.monotonic() - killed < 1.0
        assert "signal 9" in str(ear.deaths[0])
        assert ear.deaths[0].numbers == {"exit_code": -9}
        client.add_requests([ask("a", 65)])
        client.abort_requests(["a"])

    run_with("fake", use)


def test_whoever_waits_for_an_answer_hears_of_the_death() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        client.add_requests([ask("a", *[65] * 200, max_tokens=200)])
        os.kill(client.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(client.reset_prefix_cache())
        await asyncio.sleep(0.01)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            await waiting

    run_with("fake", use)


def test_a_core_that_breaks_leaves_its_last_words() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        client.add_requests([ask("a", 1)])
        await ear.wait(lambda: ear.deaths)
        assert "exit code 1: The engine core failed: ValueError: a bug." in str(ear.deaths[0])

    run_with("fake", use)


def test_an_abort_frees_within_a_step() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        client.add_requests([ask("a", *[65] * 900, max_tokens=900)])
        await ear.wait(lambda: ear.tokens)
        client.abort_requests(["a"])
        await ear.wait(lambda: ear.last is not None and ear.last.stats.num_used_blocks == 0)
        assert len(ear.tokens["a"]) < 900

    run_with("fake-slow", use)


def test_an_idle_core_uses_no_time() -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        core = psutil.Process(client.pid)
        await asyncio.sleep(1)  # what starting it leaves to be done ends
        before = core.cpu_times()
        await asyncio.sleep(0.5)
        after = core.cpu_times()
        assert after.user + after.system - before.user - before.system <= 0.02

    run_with("fake", use)


def test_a_core_ends_when_its_front_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from octavo.config import EngineConfig, ModelSource
from octavo.engine.process_client import ProcessClient
from tests.engine.test_process_client import Ear
async def main():
    client = ProcessClient(EngineConfig(model=ModelSource(model="fake")), Ear(), module={MODULE!r})
    await client.start()
    print(client.pid, client._folder, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    front = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    with front, front.stdout:
        pid, folder = front.stdout.readline().split()
        front.kill()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the core outlived its front end"
        time.sleep(0.02)
    assert not Path(folder).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_whole_group_do_not_end_the_core(number: int) -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        os.kill(client.pid, number)
        client.add_requests([ask("a", 65)])
        await ear.wait(lambda: "a" in ear.finished)

    run_with("fake", use)


def test_a_core_in_the_middle_of_a_long_step_is_killed_at_shutdown() -> None:
    async def main() -> None:
        client = ProcessClient(EngineConfig(model=ModelSource(model="fake")), Ear(), module=MODULE)
        await client.start()
        os.kill(client.pid, signal.SIGSTOP)
        await client.shutdown(timeout_s=0.1)
        assert not psutil.pid_exists(client.pid)

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        client = ProcessClient(EngineConfig(model=ModelSource(model="fake")), Ear(), module=MODULE)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not psutil.pid_exists(client.pid)

    asyncio.run(main())


def test_a_long_temporary_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = _private_folder()
    assert len(str(folder / "core")) <= LONGEST_PATH
    folder.rmdir()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_core_logs_in_the_format_of_who_started_it(log_format: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def use(client: ProcessClient, ear: Ear) -> None:
        pass

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging(log_format)
        run_with("fake-talks", use)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capfd.readouterr().err
    if log_format == "json":
        (line,) = [line for line in said.splitlines() if "octavo.fake" in line]
        assert json.loads(line)["message"] == "I am\nready."
    else:
        assert "[octavo.fake] I am\nready." in said
