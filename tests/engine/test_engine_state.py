"""What each state of an engine answers to requests."""

from __future__ import annotations

import pytest

from octavo.engine.engine_state import EngineState
from octavo.errors import EngineDeadError


def test_only_a_running_engine_takes_requests() -> None:
    EngineState.RUNNING.check(2)
    for state, words in (
        (EngineState.NEW, "is starting"),
        (EngineState.STARTING, "is starting"),
        (EngineState.RESTARTING, "is starting"),
        (EngineState.DEAD, "died 3 times in a row"),
        (EngineState.STOPPED, "was shut down"),
    ):
        with pytest.raises(EngineDeadError, match=words):
            state.check(2)
