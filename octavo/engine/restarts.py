"""How often in a row a core that died is started again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.errors import OctavoError

HEALTHY_S = 60.0
"""A core that has run for so long is no longer counted among the failed attempts to restart."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Restarts:
    """Owns: the count of starts in a row.

    Parameters:
        name: what is started, for the log, e.g. `engine core`.
        most: starts in a row after a death.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.in_a_row = 0
        self._started_at = 0.0

    def note_start(self) -> None:
        """It runs."""
        self._started_at = time.monotonic()

    def note_death(self) -> None:
        """It has died; if it was well for long enough, the count starts anew."""
        if time.monotonic() - self._started_at >= HEALTHY_S:
            self.in_a_row = 0

    async def attempt(self, start: Callable[[], Awaitable[T]]) -> T | None:
        """What `start` returns, tried as often as may be, with pauses that grow; None when it has died too often."""
        while self.in_a_row < self._most:
            self.in_a_row += 1
            logger.warning("Starting the %s again (%d of %d).", self._name, self.in_a_row, self._most)
            try:
                return await start()
            except OctavoError as error:
                logger.error("The %s could not be started again: %s", self._name, error)
                await asyncio.sleep(min(30.0, 2.0 ** (self.in_a_row - 1)))
        logger.critical("The %s has died too often: it stays down.", self._name)
        return None
