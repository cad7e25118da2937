"""Who may watch requests come and go: metrics and logs. A watcher looks and never steers."""

from __future__ import annotations

import logging
from typing import Protocol

from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import RequestOutput
from octavo.errors import OctavoError
from octavo.messages import CoreReady, CoreState, EngineCoreOutputs

logger = logging.getLogger(__name__)


class EngineObserver(Protocol):
    """Called in the event loop of the engine. Times are `time.perf_counter`."""

    def engine_ready(self, ready: CoreReady) -> None:
        """A core has started, the first or one in place of a dead one."""

    def engine_stalled(self, state: CoreState) -> None:
        """Nobody can run in a core: it ends, and another one is started."""

    def request_arrived(self, request: PromptRequest, now: float) -> None:
        """A request was handed to the core."""

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        """News of one step, before it is made into texts."""

    def request_finished(self, output: RequestOutput, now: float) -> None:
        """A request has ended well."""

    def request_failed(self, request: PromptRequest, error: OctavoError | None, now: float) -> None:
        """A request has ended with `error`, or was given up by its reader (None)."""


class NoObserver:
    """Watches nothing."""

    def engine_ready(self, ready: CoreReady) -> None:
        """Nothing."""

    def engine_stalled(self, state: CoreState) -> None:
        """Nothing."""

    def request_arrived(self, request: PromptRequest, now: float) -> None:
        """Nothing."""

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        """Nothing."""

    def request_finished(self, output: RequestOutput, now: float) -> None:
        """Nothing."""

    def request_failed(self, request: PromptRequest, error: OctavoError | None, now: float) -> None:
        """Nothing."""


class GuardedObserver:
    """Hands on to another observer whatever it is told. Owns: which of its failures were logged. Never: lets one of
    them hold up a request."""

    def __init__(self, observer: EngineObserver) -> None:
        self._observer = observer
        self._logged: set[str] = set()

    def _failed(self, event: str) -> None:
        if event not in self._logged:
            self._logged.add(event)
            logger.exception("The observer failed in %s; this is logged once, and requests go on.", event)

    def engine_ready(self, ready: CoreReady) -> None:
        """A core has started."""
        try:
            self._observer.engine_ready(ready)
        except Exception:
            self._failed("engine_ready")

    def engine_stalled(self, state: CoreState) -> None:
        """Nobody can run in a core."""
        try:
            self._observer.engine_stalled(state)
        except Exception:
            self._failed("engine_stalled")

    def request_arrived(self, request: PromptRequest, now: float) -> None:
        """A request was handed to the core."""
        try:
            self._observer.request_arrived(request, now)
        except Exception:
            self._failed("request_arrived")

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        """News of one step."""
        try:
            self._observer.step_ended(outputs, now)
        except Exception:
            self._failed("step_ended")

    def request_finished(self, output: RequestOutput, now: float) -> None:
        """A request has ended well."""
        try:
            self._observer.request_finished(output, now)
        except Exception:
            self._failed("request_finished")

    def request_failed(self, request: PromptRequest, error: OctavoError | None, now: float) -> None:
        """A request has ended otherwise."""
        try:
            self._observer.request_failed(request, error, now)
        except Exception:
            self._failed("request_failed")
