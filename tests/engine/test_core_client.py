"""The contract of all clients of a core."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.core_client import EngineCoreClient


def test_every_verb_of_the_contract_is_one_of_the_core() -> None:
    verbs = {name for name, _ in inspect.getmembers(EngineCoreClient) if not name.startswith("_")}
    methods = {name for name in verbs if inspect.isfunction(getattr(EngineCoreClient, name))}
    own = {"share_grammars"}  # with which a client lets its core use what the front end has compiled
    assert {name for name in methods - own if not callable(getattr(EngineCore, name, None))} == set()


@pytest.mark.slow
def test_the_front_of_an_engine_in_another_process_needs_no_torch() -> None:
    program = "import sys, octavo.engine.async_llm; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
