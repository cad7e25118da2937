"""Settings for all tests. Each test file builds what it needs itself; shared strategies are in tests/strategies.py."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "long", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Markers part the tests into three tiers: quick (unmarked), slow and long."""
    for item in items:
        if item.get_closest_marker("slow") and item.get_closest_marker("long"):
            raise pytest.UsageError(f"{item.nodeid} is marked both slow and long: choose one")


_GIVEN_THREADS = os.environ.get("OCTAVO_NUM_THREADS")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread for toy models, every core for real ones, unless the environment says otherwise.

    A step of a toy is too short to share: on a busy machine its threads would wait for each other most of the time.
    """
    if _GIVEN_THREADS is not None:
        return
    is_toy = item.get_closest_marker("model") is None
    os.environ["OCTAVO_NUM_THREADS"] = "1" if is_toy else "0"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1 if is_toy else len(os.sched_getaffinity(0)))
