"""A whole server in a thread, over a fake core in a process: its answer is the prompt backwards."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn

from octavo.engine.async_llm import AsyncLLM
from octavo.observe.metrics import EngineMetrics, ThroughputMeter
from octavo.server.app import make_app
from octavo.server.gate import Gate
from octavo.server.settings import ServerSettings
from octavo.server.watch import MetricsObserver
from octavo.server.watchdog import Watchdog

ENGINE_OPTIONS = (
    "max_num_seqs",
    "max_restarts",
    "load_format",
    "kv_memory",
    "max_model_len",
    "block_size",
    "num_blocks_override",
    "kv_cache_metrics_sample",
    "generation_config",
    "data_parallel_size",
)


class RunningServer:
    """One that listens. `http` is a client of it; `engine`, `gate` and `meter` are to look at."""

    def __init__(self, model: str, settings: ServerSettings, **options: Any) -> None:
        self._bound = socket.socket()
        self._bound.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._bound.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.url, timeout=20)
        self._settings = settings
        self._started = threading.Event()
        self.engine: AsyncLLM
        self.gate: Gate
        self.meter: ThroughputMeter
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(model, options)), daemon=True)
        self._thread.start()
        assert self._started.wait(600)  # a real model on a busy machine

    async def _run(self, model: str, options: dict[str, Any]) -> None:
        metrics, self.meter = EngineMetrics(model), ThroughputMeter("CPU")
        self.watchdog = Watchdog(metrics, timeout_s=self._settings.watchdog_timeout_s)
        self.engine = AsyncLLM(model, observer=MetricsObserver(metrics, self.meter, self.watchdog), **options)
        app, self.gate = make_app(self.engine, self._settings, metrics, version="1.2.3")
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        async with self.engine:
            watching = asyncio.ensure_future(self.watchdog.watch(self.engine))
            serving = asyncio.ensure_future(self._server.serve(sockets=[self._bound]))
            while not self._server.started:
                await asyncio.sleep(0.01)
            self._started.set()
            await serving
            watching.cancel()

    def stop(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)
        self._bound.close()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, "it never came about"
            time.sleep(0.01)

    def is_idle(self) -> bool:
        """Whether nothing is under way, here and in the core."""
        stats = self.engine.stats()
        busy = self.engine.num_unfinished or self.gate.num_sequences or (stats and stats.num_used_blocks)
        return not busy


@contextlib.contextmanager
def running(model: str = "fake", **settings: Any) -> Iterator[RunningServer]:
    """A server that is stopped at the end, after everything it was asked has gone from the engine."""
    engine_options = {name: settings.pop(name) for name in ENGINE_OPTIONS if name in settings}
    server = RunningServer(model, ServerSettings(**settings), **engine_options)
    try:
        yield server
        server.until(server.is_idle)
    finally:
        server.stop()
