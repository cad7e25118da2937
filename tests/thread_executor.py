"""Ranks as threads of one process: what several ranks compute can be tried on without starting any."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import ExecutorError
from octavo.executor.executor import Executor
from octavo.messages import ModelRunnerOutput, Rendezvous, SchedulerOutput
from octavo.models import loader, score_stand_in
from octavo.worker.worker import Worker
from octavo.worker.wrapper import WorkerWrapper


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no two threads construct models: transformers changes its own modules meanwhile."""
    lock = threading.RLock()

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return function(*args, **kwargs)

        return call

    for name in ("_load_weights", "_empty_model", "find_model"):
        monkeypatch.setattr(loader, name, guarded(getattr(loader, name)))
    _masks_by_thread(monkeypatch)


def _masks_by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each thread replace transformers' mask functions for itself, as a rank's process does."""
    functions: Any = score_stand_in.MASK_FUNCTIONS
    own = {name: functions[name] for name in score_stand_in.OWN_ATTENTION}
    replaced: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)

    def chosen(name: str) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            stack = replaced[threading.get_ident()]
            if not stack:
                return own[name](*args, **kwargs)
            top = stack.pop()  # which may ask for what it replaces
            try:
                return top[name](*args, **kwargs)
            finally:
                stack.append(top)

        return make

    @contextmanager
    def replace(replacement: Callable[[str], Callable[..., Any]]) -> Iterator[None]:
        stack = replaced[threading.get_ident()]
        stack.append({name: replacement(name) for name in own})
        try:
            yield
        finally:
            stack.pop()

    for name in own:
        monkeypatch.setitem(functions, name, chosen(name))
    monkeypatch.setattr(score_stand_in, "_mask_functions", replace)


class ThreadExecutor(Executor):
    """A thread per rank. Construct models `one_at_a_time`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._workers: list[WorkerWrapper] = []

    def start(self) -> None:
        size = self._config.parallel.world_size
        self._workers = [WorkerWrapper(self._config, global_rank=rank, local_rank=rank) for rank in range(size)]
        try:
            with TemporaryDirectory() as folder:
                rendezvous = Rendezvous(path=str(Path(folder, "ranks")), num_local_ranks=size, timeout_s=20)
                self.collective_rpc("init_worker", (rendezvous,))
                self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self.shutdown()
            raise

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        self.check_health()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            return list(pool.map(lambda worker: getattr(worker, method)(*args), self._workers))

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        outputs = self.collective_rpc("execute_model", (step,))[-self._config.parallel.tensor_parallel_size :]
        assert all(output == outputs[0] for output in outputs), "the ranks disagree"
        found: ModelRunnerOutput = outputs[0]
        return found

    @property
    def workers(self) -> list[Worker]:
        return [worker._made() for worker in self._workers]

    def check_health(self) -> None:
        if not self._workers:
            raise ExecutorError("The executor is not running.", remedy="Call start first.")

    def shutdown(self) -> None:
        for worker in self._workers:
            worker.shutdown()
        self._workers = []
