"""A Ray cluster of this machine for the tests of one file: to start one takes seconds, to connect to it none."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def local_cluster(num_cpus: int = 4) -> Iterator[None]:
    """Connected to a cluster of its own; skips the test where Ray is not installed."""
    ray = pytest.importorskip("ray", reason='needs Ray: pip install "octavo[ray]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written to the user's home
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), os.getcwd()) if part)
        )
        ray.init(
            address="local",
            num_cpus=num_cpus,
            log_to_driver=False,
            include_dashboard=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            object_store_memory=80 * 2**20,
        )
        try:
            yield
        finally:
            ray.shutdown()
