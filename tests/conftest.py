"""Settings for all tests. Each test file builds what it needs itself; shared strategies are in tests/strategies.py."""

from __future__ import annotations

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
