"""Who notices that nothing moves: requests are under way, and no step has come to anything for a while.

A step in which nobody can run ends its core, which then says what it had (`StuckError`). What is left to notice from
outside is a core that goes on and gives nobody a token, and one that never comes out of a step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from octavo.engine.async_llm import AsyncLLM
from octavo.errors import OctavoError
from octavo.messages import CoreState, EngineCoreOutputs
from octavo.observe.metrics import EngineMetrics

ANSWER_TIMEOUT_S = 5.0
"""A core that has not said what it has after this is in the middle of a step."""

logger = logging.getLogger(__name__)


class Watchdog:
    """Owns: when each core last got on with its work. Never: ends or restarts anything; it tells.

    Parameters:
        timeout_s: how long nothing may come of requests under way; 0 watches nothing.
    """

    def __init__(self, metrics: EngineMetrics, *, timeout_s: float, clock: Callable[[], float] = time.perf_counter):
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._clock = clock
        self._progress: dict[int, float] = {}
        """By core: when a step last computed something, or had nothing to compute."""
        self._busy: set[int] = set()
        """Cores whose last news had unfinished requests."""
        self._idle_until = clock()
        """When a request last came while there was no other."""
        self._has_told = False

    def core_started(self, engine: int) -> None:
        """A core is ready, and has nothing to do."""
        self._progress[engine] = self._clock()
        self._busy.discard(engine)

    def request_arrived(self, num_unfinished: int) -> None:
        """A request is handed to a core, which makes `num_unfinished` of them."""
        if num_unfinished <= 1:
            self._idle_until = self._clock()

    def step_ended(self, outputs: EngineCoreOutputs) -> None:
        """News of one step of one core."""
        is_busy = outputs.stats.num_running + outputs.stats.num_waiting > 0
        (self._busy.add if is_busy else self._busy.discard)(outputs.engine)
        if outputs.outputs or outputs.num_prompt_tokens or not is_busy:
            self._progress[outputs.engine] = self._clock()
            self._has_told = False

    def stalled_for(self, num_unfinished: int) -> float | None:
        """For how many seconds nothing has come of the `num_unfinished` requests under way, of one core or of all of
        them; None where that is not too long, and where it was told already."""
        if not num_unfinished or not self._timeout_s or self._has_told:
            return None
        waits = [self._clock() - self._progress[engine] for engine in self._busy if engine in self._progress]
        waits.append(self._clock() - max([self._idle_until, *self._progress.values()]))
        seconds = max(waits)
        return seconds if seconds > self._timeout_s else None

    async def watch(self, engine: AsyncLLM) -> None:
        """Look again and again, until cancelled."""
        while self._timeout_s:
            await asyncio.sleep(min(1.0, self._timeout_s / 4))
            seconds = self.stalled_for(engine.num_unfinished)
            if seconds is None:
                continue
            self._has_told = True
            try:
                states = await engine.report_states(ANSWER_TIMEOUT_S)
            except OctavoError:  # dead, or being started again: its requests have been told
                continue
            self.tell(seconds, engine.num_unfinished, states)

    def tell(self, seconds: float, num_unfinished: int, states: Sequence[CoreState]) -> None:
        """Log one record of what stands still, and count it."""
        if not states:
            cause, why = "no_answer", "No core says what it has: the log shows what its threads are doing."
        else:
            cause = "nobody_runs" if any(state.is_stuck for state in states) else "no_progress"
            why = " ".join(map(described, states))
        self._metrics.stalled(cause)
        logger.error(
            "Stalled: nothing has come of the %d requests under way for %.1f s (--watchdog-timeout is %g). %s",
            num_unfinished,
            seconds,
            self._timeout_s,
            why,
        )

    def tell_stuck(self, state: CoreState) -> None:
        """Log one record of what a core had in which nobody could run, and count it."""
        self._metrics.stalled("nobody_runs")
        logger.error("Stalled: nobody can run, so the engine core ends. %s", described(state))


def described(state: CoreState) -> str:
    """A core's state: a sentence for people, and all of it as JSON."""
    stats = state.stats
    num_free = stats.num_free_blocks + stats.num_cached_blocks
    compiling = f", {state.num_compiling} wait for a grammar" if state.num_compiling else ""
    return (
        f"Core {state.engine}: {stats.num_running} run, {stats.num_waiting} wait{compiling}, "
        f"{num_free} of {stats.num_blocks - 1} blocks are free. State: {msgspec.json.encode(state).decode()}"
    )
