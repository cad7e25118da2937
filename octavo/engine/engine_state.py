"""Where an `AsyncLLM` stands, and what its callers are told of it."""

from __future__ import annotations

import enum

from octavo.errors import EngineDeadError


class EngineState(enum.Enum):
    """Where an `AsyncLLM` stands."""

    NEW = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    RESTARTING = enum.auto()
    """The core has died, and another one is on its way."""
    DEAD = enum.auto()
    """The core has died too often."""
    STOPPED = enum.auto()

    def check(self, num_restarts: int) -> None:
        """Raises `EngineDeadError` unless requests can be served; `num_restarts` is how often in a row a core that died
        was started again."""
        if self in (EngineState.RESTARTING, EngineState.STARTING, EngineState.NEW):
            raise EngineDeadError("The engine is starting.", remedy="Send the request again in some seconds.")
        if self is EngineState.DEAD:
            raise EngineDeadError(
                f"The engine core has died {num_restarts + 1} times in a row.", remedy="Start the server again."
            )
        if self is EngineState.STOPPED:
            raise EngineDeadError("This engine was shut down.", remedy="Start another one.")
