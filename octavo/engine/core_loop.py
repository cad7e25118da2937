"""What the process of an engine core does: take messages, run steps, tell what came of them.

    front end                                     core
        StartCore(config)            ->
                                     <-  StageEnded ..., then CoreReady or CoreFailed
        AddRequests, AbortRequests   ->
        AskState, AskMemory, ...     ->
                                     <-  StateTold, MemoryTold, ...
                                     <-  EngineCoreOutputs, one for each step; RequestRefused
        StopCore                     ->  the process ends

Between two steps the loop takes what has arrived, and never waits for more while there is something to run. With
nothing to run it sleeps on the socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import zmq

from octavo.config import EngineConfig, ModelConfig
from octavo.error_report import ErrorReport, report_of
from octavo.errors import OctavoError, StuckError
from octavo.kv.planner import KVCachePlan
from octavo.messages import (
    AbortRequests,
    AddRequests,
    AskMemory,
    AskState,
    CoreFailed,
    CoreReady,
    CoreState,
    EngineCoreOutputs,
    EngineCoreRequest,
    FromCore,
    MemoryReport,
    MemoryTold,
    PrefixCacheReset,
    RequestRefused,
    ResetPrefixCache,
    StageEnded,
    StageReport,
    StartCore,
    StateTold,
    StopCore,
    ToCore,
)

logger = logging.getLogger(__name__)


class RunnableCore(Protocol):
    """The verbs of `EngineCore` that the loop needs."""

    plan: KVCachePlan
    model_config: ModelConfig
    max_model_len: int

    def add_request(self, request: EngineCoreRequest) -> None:
        """Put a request into the line, or raise `RequestError`."""

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget these requests."""

    def has_unfinished_requests(self) -> bool:
        """Whether there is something to run."""

    def step(self) -> EngineCoreOutputs:
        """Run one step."""

    def check_ranks(self) -> None:
        """Raise when nothing can run any more."""

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, unless a request holds blocks."""

    def state(self) -> CoreState:
        """What there is and who is first."""

    def report_memory(self) -> list[MemoryReport]:
        """What each rank's cache really takes."""

    def shutdown(self) -> None:
        """Stop the ranks."""


MakeCore = Callable[[EngineConfig, Callable[[StageReport], None]], RunnableCore]
"""Makes a core that is ready, and tells of each stage. Raises the `OctavoError` of the stage that failed."""


class CoreLoop:
    """One core, driven by messages.

    Owns: the core, from `StartCore` to `StopCore`. Never: waits for a front end that does not read: what it has not
    taken yet waits in the socket.
    """

    def __init__(self, socket: zmq.Socket[bytes], make_core: MakeCore) -> None:
        self._socket = socket
        self._make_core = make_core
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
        self._is_stopping = False
        self._has_aborted = False
        """Whether requests have gone since the last news."""

    def run(self) -> int:
        """Serve until told to stop; the exit code of the process."""
        first = self._receive()
        if not isinstance(first, StartCore):
            return 0
        try:
            core = self._make_core(first.config, lambda report: self._send(StageEnded(report=report)))
        except Exception as error:
            if not isinstance(error, OctavoError):
                logger.exception("The engine core could not start.")
            self._send(CoreFailed(error=_report(error)))
            return 1
        try:
            self._send(CoreReady(plan=core.plan, model_config=core.model_config, max_model_len=core.max_model_len))
            self._serve(core)
        except Exception as error:
            logger.exception("The engine core is broken.")
            state = error.state if isinstance(error, StuckError) else None
            self._send(CoreFailed(error=_report(error), state=state))
            return 1
        finally:
            core.shutdown()
        return 0

    def _serve(self, core: RunnableCore) -> None:
        while not self._is_stopping:
            if not core.has_unfinished_requests():
                if self._has_aborted:  # so that nobody goes on showing what was running
                    self._send(core.step())
                    self._has_aborted = False
                self._take(core, self._receive())
            while not self._is_stopping and self._socket.poll(0):
                self._take(core, self._receive())
            if self._is_stopping or not core.has_unfinished_requests():
                continue
            started = time.perf_counter()
            outputs = core.step()
            self._has_aborted = False
            self._send(msgspec.structs.replace(outputs, step_s=time.perf_counter() - started))
            if any(output.error is not None for output in outputs.outputs):
                core.check_ranks()  # without them the process ends, so that whoever started it starts another one

    def _take(self, core: RunnableCore, message: ToCore) -> None:
        match message:
            case AddRequests(requests=requests):
                for request in requests:
                    self._add(core, request)
            case AbortRequests(request_ids=request_ids):
                core.abort_requests(request_ids)
                self._has_aborted = True
            case ResetPrefixCache(number=number):
                self._send(PrefixCacheReset(number=number, is_done=core.reset_prefix_cache()))
            case AskMemory(number=number):
                self._send(MemoryTold(number=number, reports=core.report_memory()))
            case AskState(number=number):
                self._send(StateTold(number=number, state=core.state()))
            case StopCore():
                self._is_stopping = True
            case StartCore():
                logger.error("The engine core was told to start twice; the second time is passed over.")

    def _add(self, core: RunnableCore, request: EngineCoreRequest) -> None:
        try:
            core.add_request(request)
        except OctavoError as error:
            self._send(RequestRefused(request_id=request.request_id, error=_report(error)))

    def _receive(self) -> ToCore:
        return self._decoder.decode(self._socket.recv())

    def _send(self, message: FromCore) -> None:
        self._socket.send(self._encoder.encode(message))


def _report(error: BaseException) -> ErrorReport:
    """What a front end is told of an error of this core."""
    return report_of(error, doing="The engine core failed", remedy="Its log has the whole trace.")
