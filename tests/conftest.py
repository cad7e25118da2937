"""Settings for all tests. Each test file builds what it needs itself; shared strategies are in tests/strategies.py."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "long", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")
