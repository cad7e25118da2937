"""The gate counts; tests/server/test_app.py has it refuse over HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.engine.input_processor import PromptRequest
from octavo.request import SamplingParams
from octavo.server.bodies import TokenizeBody
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


def test_what_is_unknown_is_told_once_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(ENGINE, ServerSettings())
    for fields in ({"b": 1, "a": 2}, {"a": 1}, {f"f{number:02}": 1 for number in range(12)}, {"x" * 2000: 1}):
        gate.note_unknown(TokenizeBody(prompt="x", **fields))  # type: ignore[arg-type]
    listed = ", ".join(f"'f{number:02}'" for number in range(10))
    assert [record.getMessage() for record in caplog.records] == [
        "Requests have the fields 'a', 'b', which have no effect here.",
        f"Requests have the fields {listed} and 2 more, which have no effect here.",
        f"Requests have the field '{'x' * 79}, which has no effect here.",
    ]
    gate.note_unknown(TokenizeBody(prompt="x", **{f"g{number}": 1 for number in range(5000)}))  # type: ignore[arg-type]
    gate.note_unknown(TokenizeBody(prompt="x", one_more=1))  # type: ignore[call-arg]
    assert len(caplog.records) == 4


def test_the_model_has_the_names_it_is_served_by() -> None:
    gate = Gate(ENGINE, ServerSettings(served_model_names=("a", "b")))
    gate.check_model(None)
    gate.check_model("b")
    with pytest.raises(ServerError, match="a, b"):
        gate.check_model("fake")
    assert Gate(ENGINE, ServerSettings()).names == ("fake",)
