"""Settings for all tests. Each test file builds what it needs itself; shared strategies are in tests/strategies.py."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "long", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts a run in the background lets it ignore Ctrl-C, and so would every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_TIMEOUT_S = 3600
"""Of a test under the profile `long`, which has twenty times the examples, unless the test says otherwise."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Markers part the tests into three tiers, and what may run side by side into groups, the longest first."""
    is_long_run = config.getoption("hypothesis_profile", None) == "long"
    for item in items:
        if is_long_run and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
        if item.get_closest_marker("slow") and item.get_closest_marker("long"):
            raise pytest.UsageError(f"{item.nodeid} is marked both slow and long: choose one")
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """Real models take minutes: when they come last, one core waits for the other."""
    return 0 if item.get_closest_marker("model") and not item.get_closest_marker("long") else 1


_GIVEN_THREADS = os.environ.get("OCTAVO_NUM_THREADS")
_NUM_SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Processes that share this machine's cores with this one, itself included."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread for toy models, every core for real ones, unless the environment says otherwise.

    A step of a toy is too short to share: on a busy machine its threads would wait for each other most of the time.
    """
    if _GIVEN_THREADS is not None:
        return
    is_toy = item.get_closest_marker("model") is None
    num_threads = 1 if is_toy else max(1, len(os.sched_getaffinity(0)) // _NUM_SIDE_BY_SIDE)
    os.environ["OCTAVO_NUM_THREADS"] = str(num_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)
