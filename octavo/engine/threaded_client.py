"""Cores in processes of their own, for callers without an event loop: one runs in a thread here."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from octavo.config import EngineConfig, ModelConfig
from octavo.engine.core_client import EngineCoreClient
from octavo.engine.data_parallel_client import make_core_client
from octavo.errors import EngineDeadError, InvariantError, OctavoError
from octavo.kv.planner import KVCachePlan
from octavo.messages import (
    CoreReady,
    CoreState,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
    StageReport,
)
from octavo.request import FinishReason

T = TypeVar("T")


class ThreadedClient(EngineCoreClient):
    """The cores that `config` asks for, behind the verbs of one core.

    Owns: a thread with an event loop, the client in it, the news that nobody has taken yet.
    Never: computes; a step is the next news of any core.

    A request that a core refuses, or loses when it dies, ends with `FinishReason.ERROR` and the message. When all cores
    are gone, every call raises how the last one ended. Raises at start-up what `ProcessClient.start` raises.
    """

    def __init__(self, config: EngineConfig, *, on_stage: Callable[[StageReport], None] | None = None) -> None:
        self._news: queue.SimpleQueue[EngineCoreOutputs | EngineDeadError] = queue.SimpleQueue()
        self._unfinished: set[str] = set()
        self._stats: dict[int, SchedulerStats] = {}
        self._engines: frozenset[int] = frozenset()
        self._death: EngineDeadError | None = None
        self._is_shut_down = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cores", daemon=True)
        self._thread.start()
        try:
            self._ready = self._await(self._start(config, on_stage))
        except BaseException:
            self._end_loop()
            raise

    async def _start(self, config: EngineConfig, on_stage: Callable[[StageReport], None] | None) -> CoreReady:
        self._client = make_core_client(config, self, max_restarts=0)
        return await self._client.start(on_stage)

    # -- the verbs --------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> KVCachePlan:
        return self._ready.plan

    @property
    def model_config(self) -> ModelConfig:
        return self._ready.model_config

    @property
    def max_model_len(self) -> int:
        return self._ready.max_model_len

    def add_request(self, request: EngineCoreRequest) -> None:
        """Put a request into the line. One that is refused ends with an error in a step that follows."""
        self._check_alive()

        async def add() -> None:
            self._client.add_requests([request])

        self._unfinished.add(request.request_id)
        try:
            self._await(add())
        except BaseException:
            self._unfinished.discard(request.request_id)
            raise

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._unfinished.difference_update(request_ids)
        if self._is_shut_down or self._death is not None:
            return

        async def abort() -> None:
            self._client.abort_requests(request_ids)

        self._await(abort())

    def step(self) -> EngineCoreOutputs:
        """The next news of any core: waits for it while requests are under way."""
        while True:
            self._check_alive()
            if not self._unfinished:
                return EngineCoreOutputs(outputs=[], stats=self.stats())
            news = self._news.get()
            if isinstance(news, EngineDeadError):
                self._death = news
                continue
            outputs = [output for output in news.outputs if output.request_id in self._unfinished]
            self._unfinished.difference_update(
                output.request_id for output in outputs if output.finish_reason is not None
            )
            return EngineCoreOutputs(
                outputs=outputs,
                stats=self.stats(),
                num_prompt_tokens=news.num_prompt_tokens,
                num_step_blocks=news.num_step_blocks,
                admitted=news.admitted,
                step_s=news.step_s,
            )

    def has_unfinished_requests(self) -> bool:
        return bool(self._unfinished)

    def reset_prefix_cache(self) -> bool:
        self._check_alive()
        return self._await(self._client.reset_prefix_cache())

    def stats(self) -> SchedulerStats:
        """The sum over cores, as each stood after its last step."""
        figures = self._ready.plan.figures
        fresh = SchedulerStats(
            num_running=0,
            num_waiting=0,
            num_blocks=figures.num_blocks,
            num_free_blocks=figures.usable_blocks,
            num_cached_blocks=0,
            num_used_blocks=0,
            num_preemptions=0,
            prefix_query_tokens=0,
            prefix_hit_tokens=0,
        )
        known = self._stats.copy()
        return SchedulerStats.total(known.get(engine, fresh) for engine in self._engines)

    def shutdown(self) -> None:
        if not self._is_shut_down:
            self._is_shut_down = True
            self._await(self._client.shutdown())
            self._end_loop()

    # -- the listener, in the thread of the loop ----------------------------------------------------------------------

    def take_ready(self, ready: CoreReady) -> None:
        """A core has started."""
        self._engines = self._engines | {ready.engine}

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        """News of one step of one core."""
        self._stats[outputs.engine] = outputs.stats
        self._news.put(outputs)

    def take_refusal(self, request_id: str, error: OctavoError) -> None:
        """A core refused a request, or died with it."""
        ended = EngineCoreOutput(
            request_id=request_id, new_token_ids=[], finish_reason=FinishReason.ERROR, error=str(error)
        )
        self._news.put(EngineCoreOutputs(outputs=[ended], stats=self.stats()))

    def take_stall(self, state: CoreState) -> None:
        """Nobody can run in a core; its death, which says so, is on its way."""

    def take_death(self, error: EngineDeadError) -> None:
        """No core is left."""
        self._news.put(error)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death
        if self._is_shut_down:
            raise InvariantError("cores are asked for something after their end")

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
