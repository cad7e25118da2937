"""Who may watch requests come and go: metrics and logs. A watcher looks and never steers."""

from __future__ import annotations

from typing import Protocol

from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import RequestOutput
from octavo.errors import OctavoError
from octavo.messages import CoreReady, CoreState, EngineCoreOutputs


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
