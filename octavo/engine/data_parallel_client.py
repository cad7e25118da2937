"""Several engine cores behind one client: replicas of the same model, each a process with a cache of its own.

Requests go where their prefix is cached (`octavo/engine/router.py`). A replica that dies fails its own requests and is
started again beside the others, which go on; only when none is left has the whole client died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.engine.process_client import STOP_TIMEOUT_S, CoreListener, ProcessClient
from octavo.engine.restarts import Restarts
from octavo.engine.router import PrefixRouter, RouterLimits
from octavo.errors import EngineDeadError, InvariantError, OctavoError
from octavo.messages import CoreReady, CoreState, EngineCoreOutputs, EngineCoreRequest, MemoryReport, StageReport

logger = logging.getLogger(__name__)


class _Replica:
    """One core, and what it says with its number put to it.

    Owns: its client, which is another one after each death.
    """

    def __init__(self, owner: DataParallelClient, index: int, max_restarts: int) -> None:
        self._owner = owner
        self.index = index
        self.is_alive = False
        self.restarts = Restarts(f"engine core {index}", max_restarts)
        self.client = owner.make_client(index, self)

    def take_ready(self, ready: CoreReady) -> None:
        self.is_alive = True
        self.restarts.note_start()
        self._owner.note_ready(ready)
        self._owner.listener.take_ready(msgspec.structs.replace(ready, engine=self.index))

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        self._owner.router.take_outputs(outputs.outputs)
        self._owner.listener.take_outputs(msgspec.structs.replace(outputs, engine=self.index))

    def take_refusal(self, request_id: str, error: OctavoError) -> None:
        self._owner.router.forget(request_id)
        self._owner.listener.take_refusal(request_id, error)

    def take_stall(self, state: CoreState) -> None:
        self._owner.listener.take_stall(msgspec.structs.replace(state, engine=self.index))

    def take_death(self, error: EngineDeadError) -> None:
        self.is_alive = False
        self._owner.take_replica_death(self, error)


class DataParallelClient:
    """The surface of a `ProcessClient`, over as many cores as `data_parallel_size` says.

    Owns: the cores, the router. Never: moves a request from one core to another.

    Parameters:
        max_restarts: how often in a row a core that died is started again while others live.
        module: as that of `ProcessClient`.
    """

    def __init__(
        self, config: EngineConfig, listener: CoreListener, *, max_restarts: int = 3, module: str | None = None
    ) -> None:
        self._config = config
        self._module = module
        self.listener = listener
        self._router: PrefixRouter | None = None
        self._replicas = [_Replica(self, index, max_restarts) for index in range(config.parallel.data_parallel_size)]
        self._has_started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost: EngineDeadError | None = None
        """How a core ended that was ready before all of the start was."""
        self._is_stopping = False

    @property
    def router(self) -> PrefixRouter:
        """Made when the first core is ready, which tells what a cache holds."""
        if self._router is None:
            raise InvariantError("requests are routed before a core is ready")
        return self._router

    @property
    def alive(self) -> list[int]:
        """The numbers of the cores that requests can go to."""
        return [replica.index for replica in self._replicas if replica.is_alive]

    @property
    def pids(self) -> list[int]:
        """The cores' process ids."""
        return [replica.client.pid for replica in self._replicas]

    @property
    def pid(self) -> int:
        """The first core's."""
        return self.pids[0]

    def make_client(self, index: int, listener: CoreListener) -> ProcessClient:
        """The client of core number `index`, not started."""
        parallel = msgspec.structs.replace(self._config.parallel, data_parallel_rank=index)
        config = msgspec.structs.replace(self._config, parallel=parallel)
        return ProcessClient(config, listener, module=self._module)

    async def start(self, on_stage: Callable[[StageReport], None] | None = None) -> CoreReady:
        """Start all cores side by side; `on_stage` hears the stages of the first one.

        Raises as `ProcessClient.start`, the first error of any; then nothing is left running.
        """
        try:
            async with asyncio.TaskGroup() as group:
                starting = [
                    group.create_task(replica.client.start(None if replica.index else on_stage))
                    for replica in self._replicas
                ]
            if self._lost is not None:
                raise self._lost
        except BaseException as error:
            await self.shutdown(timeout_s=0)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        self._has_started = True
        return starting[0].result()

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Put each into the line of the core that suits it best; those that are refused come back as `take_refusal`."""
        alive = self.alive
        if not alive:
            error = EngineDeadError("No engine core is alive.", remedy="Send the request again in some seconds.")
            for request in requests:
                self.listener.take_refusal(request.request_id, error)
            return
        by_replica: dict[int, list[EngineCoreRequest]] = {}
        try:
            for request in requests:
                by_replica.setdefault(self.router.route(request, alive), []).append(request)
            for replica, those in by_replica.items():
                self._replicas[replica].client.add_requests(those)
        except BaseException:  # what cannot be encoded: its siblings must not run on, which nobody would hear
            self.abort_requests([request.request_id for request in requests])
            raise

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget these requests before the next step; unknown and finished ids are skipped."""
        by_replica: dict[int, list[str]] = {}
        for request_id in request_ids:
            owner = self.router.owner(request_id)
            if owner is not None:
                by_replica.setdefault(owner, []).append(request_id)
                self.router.forget(request_id)
        for replica, those in by_replica.items():
            self._replicas[replica].client.abort_requests(those)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False while a request holds blocks of any core; the others have forgotten
        theirs then."""
        alive = self.alive
        resets = (self._replicas[replica].client.reset_prefix_cache() for replica in alive)
        answers = await asyncio.gather(*resets, return_exceptions=True)
        for replica, answer in zip(alive, answers, strict=True):
            if answer is True:
                self.router.reset(replica)
        return self._are_all_done(answers)

    async def report_memory(self) -> list[MemoryReport]:
        """What the cache of each rank of each living core really takes."""
        alive = self.alive
        told = await asyncio.gather(*(self._replicas[replica].client.report_memory() for replica in alive))
        return [
            msgspec.structs.replace(report, engine=replica)
            for replica, reports in zip(alive, told, strict=True)
            for report in reports
        ]

    async def report_states(self, timeout_s: float) -> list[CoreState]:
        """What each living core has and who is first, of those that say so in time."""
        alive = self.alive
        told = await asyncio.gather(*(self._replicas[replica].client.report_states(timeout_s) for replica in alive))
        return [
            msgspec.structs.replace(state, engine=replica)
            for replica, states in zip(alive, told, strict=True)
            for state in states
        ]

    @staticmethod
    def _are_all_done(answers: Iterable[bool | BaseException]) -> bool:
        """Whether every core said so; one that died meanwhile holds nothing."""
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineDeadError):
                raise answer
        return all(answer is not False for answer in answers)

    async def shutdown(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End all cores as `ProcessClient.shutdown` does. May be called twice."""
        self._is_stopping = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        started = [replica.client for replica in self._replicas if replica.client.has_started]
        await asyncio.gather(*(client.shutdown(timeout_s) for client in started))

    # -- lives and deaths -------------------------------------------------------------------------------------------

    def note_ready(self, ready: CoreReady) -> None:
        """A core is ready."""
        if self._router is None:
            limits = RouterLimits.of(ready.plan, self._config.scheduler.max_num_batched_tokens)
            self._router = PrefixRouter(len(self._replicas), limits)

    def take_replica_death(self, replica: _Replica, error: EngineDeadError) -> None:
        """A core has died: its requests fail, and it is started again, unless it was the last one."""
        if self._is_stopping:
            return
        if not self._has_started:
            self._lost = error
            return
        logger.error("Engine core %d: %s", replica.index, error)
        for request_id in self.router.lose(replica.index):
            self.listener.take_refusal(request_id, error)
        if not self.alive:
            self._begin(self._end(error))
            return
        replica.restarts.note_death()
        self._begin(self._restart(replica))

    async def _restart(self, replica: _Replica) -> None:
        async def start() -> CoreReady:
            replica.client = self.make_client(replica.index, replica)
            return await replica.client.start()

        await replica.restarts.attempt(start)

    async def _end(self, error: EngineDeadError) -> None:
        """The last core is gone: end those that are being started, and tell."""
        await self.shutdown(timeout_s=0)
        self.listener.take_death(error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def make_core_client(
    config: EngineConfig, listener: CoreListener, *, max_restarts: int
) -> ProcessClient | DataParallelClient:
    """The client that `config` asks for: of one core, which is restarted by whoever has the client, or of several."""
    if config.parallel.data_parallel_size == 1:
        return ProcessClient(config, listener)
    return DataParallelClient(config, listener, max_restarts=max_restarts)
