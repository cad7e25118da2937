"""Ranks as actors of Ray, beyond the contract that tests/conformance checks: whatever a rank does, nothing is left
running and the caller hears why. tests/executor/test_ray_hosts.py has several machines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.errors import ConfigError, ExecutorError, OctavoError
from octavo.messages import ModelRunnerOutput, SchedulerOutput
from tests.executor.ray_cluster import local_cluster

ray = pytest.importorskip("ray", reason='needs Ray: pip install "octavo[ray]"')
from octavo.executor import ray as executor_module  # noqa: E402
from octavo.executor.ray import RayExecutor  # noqa: E402

SLOW, LONG = pytest.mark.slow, pytest.mark.long
STEP = SchedulerOutput(step=1, num_scheduled_tokens={})


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with local_cluster():
        yield


def config(num_ranks: int = 2, **parallel: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelSource(model="none"), parallel=ParallelConfig(tensor_parallel_size=num_ranks, **parallel)
    )


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def pids_of(executor: RayExecutor) -> list[int]:
    return [rank.place.pid for rank in executor._ranks]


@contextmanager
def started(kind: str, *, silence_s: float = 3.0) -> Iterator[tuple[RayExecutor, list[int]]]:
    executor = RayExecutor(config(), rank_class=f"tests.executor.process_ranks:{kind}", silence_s=silence_s)
    try:
        executor.start()
        pids = pids_of(executor)
        yield executor, pids
    finally:
        executor.shutdown()
    assert gone(pids)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        pytest.param(
            "Dying", r"Rank 1 \(process \d+ on .*\) has ended; all ranks were stopped", id="killed", marks=SLOW
        ),
        pytest.param("Leaving", r"Rank 1 \(process \d+ on .*\) has ended", id="left", marks=LONG),
        pytest.param(
            "Stopped", r"Rank 1 \(process \d+ on .*\) has given no sign of life for \d s", id="hangs", marks=LONG
        ),
    ],
)
def test_a_rank_that_is_gone_ends_all(kind: str, says: str) -> None:
    with started(kind) as (executor, pids):
        before = time.monotonic()
        with pytest.raises(ExecutorError, match=says) as caught:
            executor.execute_model(STEP)
        assert time.monotonic() - before < 12
        assert caught.value.numbers == {"rank": 1, "pid": pids[1]}
        assert gone(pids)
        with pytest.raises(ExecutorError, match=f"No rank is running any more. {says}"):
            executor.execute_model(STEP)


@LONG
def test_a_rank_that_is_busy_for_long_is_waited_for() -> None:
    with started("Busy", silence_s=2.0) as (executor, _):
        with pytest.raises(ExecutorError, match=r"did not answer within 0\.2 s; all ranks were stopped"):
            executor.collective_rpc("execute_model", (STEP,), timeout_s=0.2)
        executor.start()
        assert executor.execute_model(STEP) == ModelRunnerOutput(sampled={})


@SLOW
def test_errors_of_ranks_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with started("Failing") as (executor, _):
        with pytest.raises(ExecutorError, match=r"Rank 1 failed in execute_model: OSError: \[Errno 5\] bad"):
            executor.execute_model(STEP)
        assert executor.determine_available_memory() == [1 << 20] * 2, "the ranks go on"
    monkeypatch.setattr(executor_module, "GRACE_S", 0.3)
    with started("FailingAlone") as (executor, pids):
        with pytest.raises(ConfigError, match=r"A mistake of the user\. Mend it\.") as caught:
            executor.execute_model(STEP)
        assert caught.value.numbers == {"number": 3}
        assert gone(pids), "the others waited for it"


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        pytest.param("Refusing", ConfigError, "This rank cannot load", id="refuses", marks=SLOW),
        pytest.param(
            "Unmakeable", ExecutorError, "Rank 0 failed in init_worker: RuntimeError: no rank", id="bug", marks=LONG
        ),
        pytest.param(
            "NoSuchRank",
            ExecutorError,
            "Rank 0 failed in init_worker: .* no attribute 'NoSuchRank'",
            id="unknown",
            marks=LONG,
        ),
    ],
)
def test_a_start_that_fails_leaves_nothing_running(kind: str, error: type[OctavoError], says: str) -> None:
    executor = RayExecutor(config(), rank_class=f"tests.executor.process_ranks:{kind}")
    with pytest.raises(error, match=says):
        executor.start()
    assert executor._ranks == []
    assert ray.available_resources()["CPU"] >= 2
    with pytest.raises(ExecutorError, match="is not running"):
        executor.check_health()


@LONG
def test_health_is_red_once_a_rank_was_killed() -> None:
    with started("Null") as (executor, pids):
        executor.check_health()
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ExecutorError, match=r"Rank 1 .* has ended"):
            for _ in range(1000):
                executor.check_health()
                time.sleep(0.01)
        assert gone(pids)


@SLOW
def test_more_ranks_than_the_cluster_has_room_for_are_refused_at_once() -> None:
    executor = RayExecutor(config(5))
    before = time.monotonic()
    with pytest.raises(ConfigError, match=r"5 ranks of 1 CPU do not fit the Ray cluster, which has 4 CPUs on 1 mach"):
        executor.start()
    with pytest.raises(ConfigError, match=r"2 ranks of 1 CPU and 1 GPU do not fit .* has 4 CPUs, 0 GPUs"):
        RayExecutor(config(device="cuda")).start()
    assert time.monotonic() - before < 5


@SLOW
def test_ranks_divide_their_machine_and_see_this_ones_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ATTENTION_BACKEND", "seen")
    with started("Telling") as (executor, _):
        told = [
            {fact: value for report in reports for fact, value in report.facts.items()}
            for reports in executor.collective_rpc("stage_reports")
        ]
        assert [each["local_rank"] for each in told] == [0, 1]
        assert [each["num_local_ranks"] for each in told] == [2, 2]
        assert {each["backend"] for each in told} == {"seen"}
        assert {each["threads"] for each in told} == {os.environ.get("OMP_NUM_THREADS", "")}
        assert len({each["meeting"] for each in told}) == 1
