"""The front end's side of a core in a process of its own: starts it, talks to it, and notices when it dies.

The socket is a Unix path in a folder that only this user can enter. Messages are msgpack of the structs in
`octavo/messages.py`; nothing on it is ever unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq
import zmq.asyncio

from octavo.config import EngineConfig, child_environment
from octavo.engine.core_socket import TELL_THREADS
from octavo.engine.log_format import current_format
from octavo.error_report import error_from
from octavo.errors import EngineDeadError, OctavoError
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

CORE_MODULE = "octavo.engine.core_process"
"""What runs in the process."""

LONGEST_PATH = 100
"""Bytes of a socket's path; systems allow 104 to 108."""

STOP_TIMEOUT_S = 10.0
"""A core that was told to stop and has not ended after this is killed: it is in the middle of a step."""

_LAST_WORDS_S = 0.1
"""What a core wrote just before its end is still on its way for this long."""

logger = logging.getLogger(__name__)


class CoreListener(Protocol):
    """Who hears what the core says, in the event loop of the client."""

    def take_ready(self, ready: CoreReady) -> None:
        """A core has started: it has no requests, and what is counted is counted from 0."""

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        """News of one step."""

    def take_refusal(self, request_id: str, error: OctavoError) -> None:
        """A request was refused; nothing of it was kept."""

    def take_stall(self, state: CoreState) -> None:
        """Nobody can run in a core, which ends for this reason."""

    def take_death(self, error: EngineDeadError) -> None:
        """The core has ended without being told to; nothing more comes from this client."""


class ProcessClient:
    """One core in a process of its own, for one event loop.

    Owns: the process, the socket, its folder. Never: starts a second core; a dead one needs a new client.

    Parameters:
        module: what to run; it gets the address of the socket and the format of logs as its arguments.
    """

    def __init__(self, config: EngineConfig, listener: CoreListener, *, module: str | None = None) -> None:
        self._config = config
        self._listener = listener
        self._module = module or CORE_MODULE
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """Questions that the core has not answered yet, by their number."""
        self._failure: OctavoError | None = None
        """The core's own account of why it ended."""
        self._is_stopping = False
        self.has_started = False
        """Whether there is, or was, a process."""
        self._on_stage: Callable[[StageReport], None] | None = None

    @property
    def pid(self) -> int:
        """The core's process id."""
        return self._process.pid

    async def start(self, on_stage: Callable[[StageReport], None] | None = None) -> CoreReady:
        """Start the process and wait until its core is ready; `on_stage` hears of each stage as it ends.

        Raises the `OctavoError` of the stage that failed, or `EngineDeadError` when the process died. Then, and when
        the wait is cancelled, nothing is left running.
        """
        loop = asyncio.get_running_loop()
        self._on_stage = on_stage
        self._ready: asyncio.Future[CoreReady] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._folder = _private_folder()
        address = f"ipc://{self._folder / 'core'}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, 0)):
            self._socket.setsockopt(option, value)
        self._socket.bind(address)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, address, current_format()],
            stdin=subprocess.PIPE,
            stdout=2,  # results of this process go to its own standard output, and nothing else does
            env=child_environment(),
        )
        self.has_started = True
        threading.Thread(target=self._watch, args=(loop,), name="core-watch", daemon=True).start()
        self._listening = asyncio.create_task(self._listen(), name="core-news")
        self._burying = asyncio.create_task(self._bury(), name="core-end")
        sending = asyncio.ensure_future(self._socket.send(self._encoder.encode(StartCore(config=self._config))))
        try:
            return await self._ready
        except BaseException:
            await self.shutdown(timeout_s=0)
            raise
        finally:
            sending.cancel()

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Put these into the line; those that are refused come back as `take_refusal`."""
        self._send(AddRequests(requests=list(requests)))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget these requests before the next step; unknown and finished ids are skipped."""
        self._send(AbortRequests(request_ids=list(request_ids)))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while a request holds blocks."""
        is_done: bool = await self._ask(ResetPrefixCache(number=next(self._numbers)))
        return is_done

    async def report_memory(self) -> list[MemoryReport]:
        """What each rank's cache really takes, as its tensors tell."""
        reports: list[MemoryReport] = await self._ask(AskMemory(number=next(self._numbers)))
        return reports

    async def report_states(self, timeout_s: float) -> list[CoreState]:
        """What the core has and who is first; nothing when it does not say so in time: it is in the middle of a step.
        Then its log gets what each of its threads is doing."""
        try:
            return [await asyncio.wait_for(self._ask(AskState(number=next(self._numbers))), timeout_s)]
        except TimeoutError:
            self._process.send_signal(TELL_THREADS)
            return []

    async def _ask(self, question: ResetPrefixCache | AskMemory | AskState) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[question.number] = future
        self._send(question)
        return await future

    async def shutdown(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process: by its own means within `timeout_s`, else at once. May be called twice."""
        self._is_stopping = True
        if not self._ended.done():
            if timeout_s > 0:
                self._send(StopCore())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._ended), timeout_s)
            if not self._ended.done():
                self._process.kill()
        await asyncio.shield(self._burying)

    def _send(self, message: ToCore) -> None:
        if not self._socket.closed:
            self._socket.send(self._encoder.encode(message))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: tell the event loop when the process has ended."""
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(self._ended.set_result, code)

    async def _listen(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                self._take(self._decoder.decode(frame))
            except Exception:  # one message that cannot be used must not silence all that follow
                logger.exception("A message of the engine core could not be used.")

    def _take(self, message: FromCore) -> None:
        match message:
            case EngineCoreOutputs():
                self._listener.take_outputs(message)
            case RequestRefused(request_id=request_id, error=report):
                self._listener.take_refusal(request_id, error_from(report))
            case StageEnded(report=stage):
                if self._on_stage is not None:
                    self._on_stage(stage)
            case CoreReady():
                if not self._ready.done():
                    self._ready.set_result(message)
                    self._listener.take_ready(message)
            case CoreFailed(error=report, state=state):
                self._failure = error_from(report)
                if state is not None:
                    self._listener.take_stall(state)
            case PrefixCacheReset(number=number, is_done=is_done):
                self._answer(number, is_done)
            case StateTold(number=number, state=state):
                self._answer(number, state)
            case MemoryTold(number=number, reports=reports):
                self._answer(number, reports)

    def _answer(self, number: int, answer: Any) -> None:
        future = self._asked.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _bury(self) -> None:
        """Wait for the end of the process; close what was its, and tell whoever waits."""
        code = await asyncio.shield(self._ended)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), _LAST_WORDS_S)
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        self._socket.close()
        self._context.term()
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        error = self._account(code)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)
        self._asked.clear()
        if not self._ready.done():
            self._ready.set_exception(self._failure or error)
        elif not self._is_stopping:
            self._listener.take_death(error)

    def _account(self, code: int) -> EngineDeadError:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        why = f": {self._failure}" if self._failure is not None else "."
        return EngineDeadError(
            f"The process of the engine core (pid {self._process.pid}) {how}{why}",
            remedy="Send the request again once the engine is up; the server's log says more.",
            exit_code=code,
        )


def _private_folder() -> Path:
    """A new folder for a socket that this user alone can enter, in the usual place where its path is short enough."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    if len(bytes(folder)) + len("/core") <= LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp"))
