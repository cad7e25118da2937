"""The engine's observer of a server: what it sees goes into the metrics and the line of every ten seconds."""

from __future__ import annotations

from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import RequestOutput
from octavo.errors import OctavoError
from octavo.messages import CoreReady, CoreState, EngineCoreOutputs
from octavo.observe.metrics import EngineMetrics, ThroughputMeter
from octavo.request import FinishReason
from octavo.server.watchdog import Watchdog


class MetricsObserver:
    """Owns: the number of requests under way; hands on what it is told."""

    def __init__(self, metrics: EngineMetrics, meter: ThroughputMeter, watchdog: Watchdog) -> None:
        self._metrics = metrics
        self._meter = meter
        self._watchdog = watchdog
        self._num_unfinished = 0

    def engine_ready(self, ready: CoreReady) -> None:
        """A core has started."""
        self._metrics.core_started(ready.plan, engine=ready.engine)
        self._watchdog.core_started(ready.engine)

    def engine_stalled(self, state: CoreState) -> None:
        """Nobody can run in a core."""
        self._watchdog.tell_stuck(state)

    def request_arrived(self, request: PromptRequest, now: float) -> None:
        """Each of its sequences has."""
        self._num_unfinished += 1
        self._watchdog.request_arrived(self._num_unfinished)
        for sequence in request.sequences():
            self._metrics.sequence_arrived(
                sequence.request_id, len(request.prompt_token_ids), now, max_tokens=sequence.sampling.max_tokens
            )

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        """News of one step."""
        self._metrics.step_ended(outputs, now)
        self._meter.step_ended(outputs)
        self._watchdog.step_ended(outputs)

    def request_finished(self, output: RequestOutput, now: float) -> None:
        """Some sequences may have ended by a stop string, of which the core does not know."""
        self._num_unfinished -= 1
        names = _sequence_ids(output.request_id, len(output.outputs))
        self._metrics.request_finished(
            {
                names[completion.index]: completion.finish_reason
                for completion in output.outputs
                if completion.finish_reason is not None
            }
        )

    def request_failed(self, request: PromptRequest, error: OctavoError | None, now: float) -> None:
        """It ended with an error, or its reader went away."""
        self._num_unfinished -= 1
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self._metrics.request_failed(_sequence_ids(request.request_id, request.sampling.n), reason)


def _sequence_ids(request_id: str, num_sequences: int) -> list[str]:
    """As `PromptRequest.sequences` calls them."""
    return [request_id] if num_sequences == 1 else [f"{request_id}.{index}" for index in range(num_sequences)]
