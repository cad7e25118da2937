"""Ranks as processes, beyond the contract that tests/conformance checks: whatever a rank does, nothing is left running
and the caller hears why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig, child_environment
from octavo.errors import ConfigError, ExecutorError, OctavoError
from octavo.executor.multiproc import MultiprocExecutor
from octavo.messages import ModelRunnerOutput, SchedulerOutput

STEP = SchedulerOutput(step=1, num_scheduled_tokens={})


def config(num_ranks: int = 3) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="none"), parallel=ParallelConfig(tensor_parallel_size=num_ranks))


def ranks_of(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "octavo.executor.rank_process" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def started(kind: str, *, num_ranks: int = 3, silence_s: float = 1.5) -> Iterator[MultiprocExecutor]:
    executor = MultiprocExecutor(
        config(num_ranks), rank_class=f"tests.executor.process_ranks:{kind}", silence_s=silence_s
    )
    try:
        executor.start()
        yield executor
    finally:
        executor.shutdown()
        assert not ranks_of(os.getpid())


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        pytest.param("Dying", r"Rank 1 \(process \d+\) was killed by SIGKILL; all ranks were stopped", id="killed"),
        pytest.param("Leaving", r"Rank 1 \(process \d+\) ended with exit code 7", id="left"),
        pytest.param("Stopped", r"Rank 1 \(process \d+\) has given no sign of life for \d s", id="hangs"),
    ],
)
def test_a_rank_that_is_gone_ends_all(kind: str, says: str) -> None:
    with started(kind) as executor:
        before = time.monotonic()
        with pytest.raises(ExecutorError, match=says) as caught:
            executor.execute_model(STEP)
        assert time.monotonic() - before < 8
        assert caught.value.numbers["rank"] == 1
        assert not ranks_of(os.getpid())
        with pytest.raises(ExecutorError, match=f"No rank is running any more. {says}"):
            executor.execute_model(STEP)


def test_a_rank_that_is_busy_for_long_is_waited_for() -> None:
    with started("Busy", num_ranks=2, silence_s=1.0) as executor:
        assert executor.execute_model(STEP) == ModelRunnerOutput(sampled={})


def test_an_answer_that_does_not_come_in_time() -> None:
    with started("Busy", num_ranks=2) as executor:
        with pytest.raises(ExecutorError, match=r"Rank 1 did not answer within 0\.2 s; all ranks were stopped"):
            executor.collective_rpc("execute_model", (STEP,), timeout_s=0.2)
        assert not ranks_of(os.getpid())


def test_an_error_of_a_rank_keeps_its_words_and_the_ranks_go_on() -> None:
    with started("Failing") as executor:
        with pytest.raises(ExecutorError, match=r"Rank 1 failed in execute_model: OSError: \[Errno 5\] bad"):
            executor.execute_model(STEP)
        assert executor.determine_available_memory() == [1 << 20] * 3


def test_an_error_of_a_rank_that_the_others_wait_for_keeps_class_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.executor.multiproc.GRACE_S", 0.3)
    with started("FailingAlone") as executor:
        with pytest.raises(ConfigError, match=r"A mistake of the user\. Mend it\.") as caught:
            executor.execute_model(STEP)
        assert caught.value.remedy == "Mend it."
        assert caught.value.numbers == {"number": 3}
        assert not ranks_of(os.getpid())


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        pytest.param("Refusing", ConfigError, "This rank cannot load", id="refuses"),
        pytest.param(
            "Unmakeable", ExecutorError, "Rank 0 failed in init_worker: RuntimeError: no rank", id="unmakeable"
        ),
        pytest.param("NoSuchRank", ExecutorError, r"Rank \d .* ended with exit code 1", id="unknown"),
    ],
)
def test_a_start_that_fails_leaves_nothing_running(kind: str, error: type[OctavoError], says: str) -> None:
    executor = MultiprocExecutor(config(), rank_class=f"tests.executor.process_ranks:{kind}")
    with pytest.raises(error, match=says):
        executor.start()
    assert not ranks_of(os.getpid())
    with pytest.raises(ExecutorError, match="is not running"):
        executor.check_health()


def test_health_is_red_once_a_rank_was_killed() -> None:
    with started("Null") as executor:
        executor.check_health()
        victim = ranks_of(os.getpid())[2]
        victim.send_signal(signal.SIGKILL)
        with pytest.raises(ExecutorError, match="was killed by SIGKILL"):
            for _ in range(500):  # it dies soon, not at once
                executor.check_health()
                time.sleep(0.01)
        assert not ranks_of(os.getpid())


def test_ranks_do_not_outlive_who_started_them() -> None:
    program = textwrap.dedent("""
        import os, time
        from tests.executor.test_multiproc import MultiprocExecutor, config
        executor = MultiprocExecutor(config(2), rank_class="tests.executor.process_ranks:Null")
        executor.start()
        print("started", flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=child_environment()) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        ranks = ranks_of(parent.pid)
        assert len(ranks) == 2
        parent.kill()
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert (len(gone), alive) == (2, [])


def test_an_executor_that_nobody_holds_ends_its_ranks() -> None:
    executor = MultiprocExecutor(config(2), rank_class="tests.executor.process_ranks:Null")
    executor.start()
    assert len(ranks_of(os.getpid())) == 2
    del executor
    assert not ranks_of(os.getpid())


def test_a_large_message_arrives_whole() -> None:
    with started("Null", num_ranks=2) as executor:
        step = SchedulerOutput(
            step=1,
            num_scheduled_tokens={},
            finished_request_ids=[f"request-{number:06}" for number in range(300_000)],
        )
        assert executor.execute_model(step) == ModelRunnerOutput(sampled={})
