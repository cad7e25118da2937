"""One server for the tests that change nothing in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.fake_process import install_fake_process
from tests.server.running import RunningServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        install_fake_process(patch)
        with running(served_model_names=("fake", "other")) as server:
            yield server


@pytest.fixture
def fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that start servers of their own."""
    install_fake_process(monkeypatch)
