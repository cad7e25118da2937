"""The gate counts; tests/server/test_app.py has it refuse over HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.engine.input_processor import PromptRequest
from octavo.request import SamplingParams
from octavo.server.failures import ServerError
from octavo.server.gate import Gate
from octavo.server.settings import ServerSettings

ENGINE: Any = SimpleNamespace(max_num_seqs=2, model_name="fake")


def _requests(*counts: int) -> list[PromptRequest]:
    return [
        PromptRequest(request_id=str(i), prompt=None, prompt_token_ids=[1], sampling=SamplingParams(n=n))
        for i, n in enumerate(counts)
    ]


def test_sequences_are_counted_in_and_out() -> None:
    async def main() -> None:
        gate = Gate(ENGINE, ServerSettings(max_waiting=3))
        async with gate.passing(_requests(2, 1)):
            assert gate.num_sequences == 3
            with pytest.raises(ServerError) as caught:
                async with gate.passing(_requests(3)):
                    pass
            assert (caught.value.status, caught.value.retry_after_s is not None) == (429, True)
            async with gate.passing(_requests(2)):
                assert gate.num_sequences == 5
        assert gate.num_sequences == 0
        with pytest.raises(KeyError):
            async with gate.passing(_requests(1)):
                raise KeyError
        assert gate.num_sequences == 0

    asyncio.run(main())


def test_one_request_that_is_larger_than_the_line_runs_alone() -> None:
    async def main() -> None:
        gate = Gate(ENGINE, ServerSettings(max_waiting=0))
        async with gate.passing(_requests(64)):
            assert gate.num_sequences == 64

    asyncio.run(main())


def test_the_model_has_the_names_it_is_served_by() -> None:
    gate = Gate(ENGINE, ServerSettings(served_model_names=("a", "b")))
    gate.check_model(None)
    gate.check_model("b")
    with pytest.raises(ServerError, match="a, b"):
        gate.check_model("fake")
    assert Gate(ENGINE, ServerSettings()).names == ("fake",)
