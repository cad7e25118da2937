"""`octavo eval perplexity` has the flags of an engine, and says how it computes."""

from __future__ import annotations

import importlib
import inspect

import pytest

from octavo.cli import eval as module
from tests.cli.terminal import run_octavo


def test_every_flag_of_an_engine_is_one_of_eval_too() -> None:
    engine_flags = importlib.import_module("octavo.cli.startup").ENGINE_FLAGS
    # Windows share no prefixes, so there is nothing to switch off.
    assert set(engine_flags) - set(inspect.signature(module.perplexity).parameters) == {"enable_prefix_caching"}


def test_the_help_states_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_octavo(monkeypatch, ["eval", "perplexity", "--help"])
    words = " ".join(said.out.replace("\u2502", " ").split())
    assert said.code == 0
    for part in (
        "Window k holds BOS",
        "scores the ids that no window before it has scored",
        "at least window - stride",
    ):
        assert part in words
