"""News find their request, and everything of a request goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from octavo.engine.input_processor import PromptRequest
from octavo.engine.observer import NoObserver
from octavo.engine.outputs import RequestOutput
from octavo.engine.post_office import PostOffice
from octavo.errors import EngineDeadError, ExecutorError, OctavoError, RequestError
from octavo.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats
from octavo.request import FinishReason, SamplingParams
from tests.engine.byte_tokenizer import ByteTokenizer
from tests.engine.fake_core import FakeCore

STATS: SchedulerStats = FakeCore(lambda request: [1]).stats()


class Watcher(NoObserver):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def request_arrived(self, request: PromptRequest, now: float) -> None:
        self.told.append(("arrived", request.request_id))

    def step_ended(self, outputs: EngineCoreOutputs, now: float) -> None:
        self.told.append(("step", len(outputs.outputs)))

    def request_finished(self, output: RequestOutput, now: float) -> None:
        self.told.append(("finished", output.request_id))

    def request_failed(self, request: PromptRequest, error: OctavoError | None, now: float) -> None:
        self.told.append(("failed", error))


def _request(number: str, n: int = 1) -> PromptRequest:
    return PromptRequest(request_id=number, prompt=None, prompt_token_ids=[65], sampling=SamplingParams(n=n))


def _news(*outputs: tuple[str, Sequence[int], FinishReason | None]) -> EngineCoreOutputs:
    return EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(request_id=name, new_token_ids=list(tokens), finish_reason=reason, error="It broke.")
            for name, tokens, reason in outputs
        ],
        stats=STATS,
    )


def _office() -> tuple[PostOffice, Watcher]:
    watcher = Watcher()
    return PostOffice(ByteTokenizer(), watcher), watcher


def test_a_request_is_watched_from_its_arrival_to_its_end() -> None:
    async def main() -> None:
        office, watcher = _office()
        mailbox, sequences = office.open(_request("1"), "mine")
        assert [sequence.request_id for sequence in sequences] == ["1"]
        assert office.find("mine") is mailbox
        assert office.deliver(_news(("1", [66], None), ("gone", [66], None))) == []
        assert office.deliver(_news(("1", [67], FinishReason.LENGTH))) == []
        assert (await mailbox.whole()).outputs[0].text == "BC"
        assert (len(office), office.find("mine"), office.give_up(mailbox)) == (0, None, [])
        assert watcher.told == [("arrived", "1"), ("step", 2), ("step", 1), ("finished", "1")]
        await asyncio.wait_for(office.wait_empty(), 1)

    asyncio.run(main())


def test_what_still_runs_of_a_request_that_fails_must_be_aborted() -> None:
    async def main() -> None:
        office, _ = _office()
        mailbox, _ = office.open(_request("1", n=3), "mine")
        office.deliver(_news(("1.0", [66], FinishReason.LENGTH)))
        assert office.deliver(_news(("1.1", [], FinishReason.ERROR))) == ["1.2"]
        with pytest.raises(ExecutorError, match="It broke"):
            await mailbox.whole()
        refused, _ = office.open(_request("2", n=2), "mine")
        assert office.fail("2.1", RequestError("refused")) == ["2.0", "2.1"]
        assert refused.has_ended
        assert office.fail("2.1", RequestError("again")) == []

    asyncio.run(main())


def test_a_form_that_is_too_large_is_the_requests_own_fault() -> None:
    async def main() -> None:
        office, _ = _office()
        mailbox, _ = office.open(_request("1"), "mine")
        (output,) = _news(("1", [], FinishReason.ERROR)).outputs
        blamed = msgspec.structs.replace(output, error_parameter="structured_outputs")
        assert office.deliver(EngineCoreOutputs(outputs=[blamed], stats=STATS)) == []
        with pytest.raises(RequestError, match="It broke") as caught:
            await mailbox.whole()
        assert caught.value.parameter == "structured_outputs"

    asyncio.run(main())


def test_giving_up_aborts_and_frees_the_name() -> None:
    async def main() -> None:
        office, watcher = _office()
        mailbox, _ = office.open(_request("1"), "mine")
        for number, name in (("2", "mine"), ("1", "other")):
            with pytest.raises(RequestError, match="in use"):
                office.open(_request(number), name)
        assert office.give_up(mailbox) == ["1"]
        assert watcher.told[-1] == ("failed", None)
        office.open(_request("2"), "mine")
        assert office.deliver(_news(("1", [66], None))) == []

    asyncio.run(main())


def test_all_fail_with_their_core() -> None:
    async def main() -> None:
        office, _ = _office()
        boxes = [office.open(_request(str(number)), str(number))[0] for number in range(3)]
        office.fail_all(EngineDeadError("It died."))
        for box in boxes:
            with pytest.raises(EngineDeadError):
                await box.take()
        assert len(office) == 0

    asyncio.run(main())


def test_news_that_cannot_be_used_end_their_requests_and_no_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        office, watcher = _office()
        lame, _ = office.open(_request("1", n=2), "lame")
        well, _ = office.open(_request("2"), "well")
        with monkeypatch.context() as patch:
            patch.setattr(office._texts, "process", lambda *_, **__: 1 // 0)
            assert office.deliver(_news(("1.0", [66], None), ("unknown", [66], None))) == ["1.0", "1.1"]
        assert [event for event, _ in watcher.told].count("failed") == 1
        assert (len(office), lame.has_ended, well.has_ended) == (1, True, False)
        assert office.deliver(_news(("1.1", [66], None), ("2", [66], FinishReason.LENGTH))) == []
        assert (await well.whole()).outputs[0].text == "B"
        with pytest.raises(ExecutorError, match="cannot be used"):
            await lame.whole()

    asyncio.run(main())
    assert "The news of a step cannot be used" in caplog.text
