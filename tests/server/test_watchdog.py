"""The watchdog: with a clock of the test's own, and over cores that really stand still."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from typing import Any

import httpx
import pytest

from octavo.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats
from octavo.observe.metrics import EngineMetrics
from octavo.server.watchdog import Watchdog
from tests.server.running import RunningServer, running

STATS = SchedulerStats(
    num_running=0,
    num_waiting=0,
    num_blocks=65,
    num_free_blocks=60,
    num_cached_blocks=4,
    num_used_blocks=0,
    num_preemptions=0,
    prefix_query_tokens=0,
    prefix_hit_tokens=0,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _news(*tokens: int, num_waiting: int = 0, num_running: int = 0, engine: int = 0) -> EngineCoreOutputs:
    stats = SchedulerStats(**{
        **{name: getattr(STATS, name) for name in STATS.__struct_fields__},
        "num_waiting": num_waiting, "num_running": num_running,
    })  # fmt: skip
    outputs = [EngineCoreOutput(request_id="a", new_token_ids=list(tokens))] if tokens else []
    return EngineCoreOutputs(outputs=outputs, stats=stats, engine=engine)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    watchdog = Watchdog(EngineMetrics("m"), timeout_s=10, clock=clock)
    watchdog.core_started(0)
    return watchdog


def test_an_idle_engine_is_no_stall_and_its_first_request_has_the_whole_time(watchdog: Watchdog, clock: Clock) -> None:
    clock.now += 1000
    assert watchdog.stalled_for(0) is None
    watchdog.request_arrived(1)
    assert watchdog.stalled_for(1) is None
    clock.now += 10.5
    assert watchdog.stalled_for(1) == 10.5


def test_steps_that_come_to_nothing_are_no_progress_and_each_token_is(watchdog: Watchdog, clock: Clock) -> None:
    watchdog.request_arrived(1)
    for _ in range(3):
        clock.now += 4
        watchdog.step_ended(_news(7, num_running=1))
    assert watchdog.stalled_for(1) is None
    for _ in range(3):
        clock.now += 4
        watchdog.request_arrived(2)  # others that come do not hide it
        watchdog.step_ended(_news(num_waiting=1))
    assert watchdog.stalled_for(2) == 12
    watchdog.step_ended(_news(7, num_running=1))
    assert watchdog.stalled_for(2) is None


def test_one_core_of_two_that_stands_still_is_seen_beside_the_other(watchdog: Watchdog, clock: Clock) -> None:
    watchdog.core_started(1)
    watchdog.request_arrived(1)
    watchdog.step_ended(_news(num_running=1, engine=1))
    for _ in range(4):
        clock.now += 4
        watchdog.step_ended(_news(7, num_running=1))
    assert watchdog.stalled_for(2) == 16
    watchdog.core_started(1)
    assert watchdog.stalled_for(2) is None


def test_nothing_is_watched_with_a_time_of_nothing(clock: Clock) -> None:
    watchdog = Watchdog(EngineMetrics("m"), timeout_s=0, clock=clock)
    watchdog.request_arrived(1)
    clock.now += 1000
    assert watchdog.stalled_for(1) is None


def _ask_in_a_thread(server: RunningServer, prompt: str) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", prompt=prompt)))
    thread.start()
    return thread, answers


def _stalls(server: RunningServer, cause: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("octavo:engine_stalls_total") and cause in line
    )


def _told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "octavo.server.watchdog"]


@pytest.mark.usefixtures("fake_process")
@pytest.mark.parametrize(("byte", "cause"), [(4, "nobody_runs"), (3, "no_answer")])
def test_a_core_that_stands_still_is_told_once_and_counted(
    byte: int, cause: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.watchdog.ANSWER_TIMEOUT_S", 0.3)
    with caplog.at_level(logging.ERROR, "octavo.server.watchdog"), running(watchdog_timeout_s=0.4) as server:
        thread, answers = _ask_in_a_thread(server, f"{chr(byte)}abc")
        server.until(lambda: _stalls(server, cause))
        server.until(lambda: _told(caplog))
        thread.join(1)
        assert thread.is_alive(), "to tell is all that it does"
        os.kill(server.engine.core_pid, signal.SIGKILL)
        thread.join(10)
        assert answers[0].status_code == 503
        (record,) = _told(caplog)
        assert "nothing has come of the 1 requests under way" in record.getMessage()
        assert _stalls(server, cause) == 1
        server.until(lambda: server.http.get("/health").status_code == 200)
    if cause == "nobody_runs":
        sentence, _, state = record.getMessage().partition(" State: ")
        assert sentence.endswith("Core 0: 0 run, 1 wait, 98 of 99 blocks are free.")
        assert json.loads(state)["stats"]["num_waiting"] == 1


@pytest.mark.usefixtures("fake_process")
def test_a_core_in_which_nobody_can_run_ends_with_a_dump_and_another_one_is_started(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "octavo.server.watchdog"), running() as server:
        answer = server.post("/v1/completions", prompt="\x05abc")
        assert answer.status_code == 503
        assert "No request can run: 0 run, 1 wait, and 98 of 99 blocks are free" in answer.json()["error"]["message"]
        (record,) = _told(caplog)
        state: dict[str, Any] = json.loads(record.getMessage().partition(" State: ")[2])
        assert state["stats"]["num_waiting"] == 1
        assert _stalls(server, "nobody_runs") == 1
        server.until(lambda: server.http.get("/health").status_code == 200)
        assert server.post("/v1/completions", prompt="abc").json()["choices"][0]["text"] == "cba"
