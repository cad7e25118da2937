"""A server from its start to its end: bind, load, listen, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.preparation import OnStage
from octavo.errors import ConfigError
from octavo.observe.metrics import EngineMetrics, ThroughputMeter
from octavo.server.app import make_app
from octavo.server.gate import Gate
from octavo.server.settings import ServerSettings
from octavo.server.watch import MetricsObserver
from octavo.server.watchdog import Watchdog

LOG_EVERY_S = 10.0

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)


async def serve(
    options: Mapping[str, Any],
    settings: ServerSettings,
    *,
    version: str,
    max_restarts: int,
    on_stage: OnStage,
    on_ready: Callable[[AsyncLLM], None],
) -> None:
    """Load the model that `options` (keywords of `AsyncLLM`) describe and serve it until a signal.

    The first SIGTERM or Ctrl-C lets requests under way end, a second one does not. `on_ready` is called when the model
    is loaded, just before the server listens. Raises as `AsyncLLM`, and `ConfigError` when the address is taken, which
    is found before anything is loaded.
    """
    bound = bind(settings)
    _allow_many_files()
    name = settings.served_model_names[0] if settings.served_model_names else str(options["model"])
    metrics, meter = EngineMetrics(name), ThroughputMeter(_device_name(options))
    watchdog = Watchdog(metrics, timeout_s=settings.watchdog_timeout_s)
    observer = MetricsObserver(metrics, meter, watchdog)
    engine = AsyncLLM(**options, on_stage=on_stage, observer=observer, max_restarts=max_restarts)
    app, gate = make_app(engine, settings, metrics, version=version)
    server = _Server(app, gate, settings)
    with bound, server.capture_signals():
        loading = asyncio.ensure_future(engine.start())
        server.on_first_signal = loading.cancel
        try:
            await loading
            server.on_first_signal = None
            on_ready(engine)
            tasks = [
                asyncio.create_task(_log_lines(meter), name="log-lines"),
                asyncio.create_task(watchdog.watch(engine), name="watchdog"),
            ]
            await server.serve(sockets=[bound])
            for task in tasks:
                task.cancel()
        except asyncio.CancelledError:
            if not server.should_exit:
                raise
        finally:
            await engine.shutdown()
            if settings.uds is not None:
                Path(settings.uds).unlink(missing_ok=True)


def bind(settings: ServerSettings) -> socket.socket:
    """A socket with the server's address, that does not listen yet. Raises `ConfigError` when that cannot be had."""
    if settings.uds is not None:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: Any = settings.uds
        where, remedy = f"the path {settings.uds}", "Remove the file if no server uses it, or choose another --uds."
    else:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (settings.host, settings.port)
        where, remedy = f"{settings.host} port {settings.port}", "Choose another --port, or another --host."
    try:
        bound.bind(address)
    except (OSError, OverflowError) as error:
        bound.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "it is in use" if taken else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"The server cannot listen at {where}: {reason}.", remedy=remedy) from None
    return bound


class _Server(uvicorn.Server):
    """uvicorn's server, whose first signal closes the gate and drains, and whose second one ends it."""

    def __init__(self, app: Any, gate: Gate, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s),
                server_header=False,
                backlog=4096,
            )
        )
        self._gate = gate
        self._heeds_signals = False
        self.on_first_signal: Callable[[], object] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Heed the signals inside the block. uvicorn's own way would raise them again at its end."""
        if self._heeds_signals:
            yield
            return
        self._heeds_signals = True
        loop = asyncio.get_running_loop()
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in _END_SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self.should_exit:
            logger.warning("Told to end a second time: requests under way are dropped.")
            self.force_exit = True
            return
        logger.info("Told to end: %d requests under way may still end.", self._gate.num_sequences)
        self.should_exit = self._gate.is_closed = True
        if self.on_first_signal is not None:
            self.on_first_signal()


async def _log_lines(meter: ThroughputMeter) -> None:
    while True:
        await asyncio.sleep(LOG_EVERY_S)
        line = meter.line(time.perf_counter())
        if line is not None:
            logger.info("%s", line)


def _allow_many_files() -> None:
    """As many open connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))


def _device_name(options: Mapping[str, Any]) -> str:
    """How log lines call the device, as far as the flags tell."""
    return "GPU" if options.get("device") == "cuda" else "CPU"
