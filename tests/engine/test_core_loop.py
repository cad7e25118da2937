"""The loop of a core in a process of its own, driven here in a thread over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
import zmq

from octavo.config import EngineConfig, ModelSource
from octavo.engine.core_loop import CoreLoop
from octavo.errors import PlanError, RequestError
from octavo.messages import (
    AbortRequests,
    AddRequests,
    AskState,
    CoreFailed,
    CoreReady,
    EngineCoreOutputs,
    EngineCoreRequest,
    FromCore,
    PrefixCacheReset,
    RequestRefused,
    ResetPrefixCache,
    StageEnded,
    StageReport,
    StartCore,
    StateTold,
    StopCore,
    ToCore,
)
from octavo.request import SamplingParams
from octavo.sched.inspection import stuck
from tests.engine.fake_core import FakeCore
from tests.engine.fake_core_process import FAKE_MODEL
from tests.engine.fake_plan import FAKE_PLAN


class Front:
    """The other end of the socket."""

    def __init__(self, context: zmq.Context[Any], make_core: Any) -> None:
        self.socket, inner = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        for end in (self.socket, inner):  # as both ends have it: what is not read waits, and nobody waits for a reader
            end.setsockopt(zmq.SNDHWM, 0)
            end.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        self.socket.bind("inproc://core")
        inner.connect("inproc://core")
        self.codes: list[int] = []

        def run() -> None:
            self.codes.append(CoreLoop(inner, make_core).run())
            inner.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def tell(self, message: ToCore) -> None:
        self.socket.send(msgspec.msgpack.encode(message))

    def hear(self) -> FromCore:
        return msgspec.msgpack.decode(self.socket.recv(), type=FromCore)  # type: ignore[no-any-return, call-overload]

    def hear_until(self, kind: type) -> list[FromCore]:
        heard = [self.hear()]
        while not isinstance(heard[-1], kind):
            heard.append(self.hear())
        return heard

    def ended(self) -> int:
        self.thread.join(30)
        assert not self.thread.is_alive(), "sockets must not be closed while another thread is in them"
        self.socket.close()
        return self.codes[0]


START = StartCore(config=EngineConfig(model=ModelSource(model="fake")))


def _core() -> FakeCore:
    core = FakeCore(lambda request: request.prompt_token_ids, refuse="refused")
    core.plan, core.model_config = FAKE_PLAN, FAKE_MODEL
    return core


def _request(name: str, prompt: Sequence[int] = (7, 8, 9), max_tokens: int = 5) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name, prompt_token_ids=list(prompt), sampling=SamplingParams(max_tokens=max_tokens)
    )


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context[Any]()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def core() -> FakeCore:
    return _core()


@pytest.fixture
def front(context: zmq.Context[Any], core: FakeCore) -> Iterator[Front]:
    front = Front(context, lambda config, on_stage: core)
    front.tell(START)
    yield front
    front.tell(StopCore())
    assert front.ended() == 0
    assert core.is_shut_down


def test_the_start_is_told_with_the_plan(front: Front) -> None:
    assert front.hear() == CoreReady(plan=FAKE_PLAN, model_config=FAKE_MODEL, max_model_len=1000)


def test_a_steps_news_is_one_message_for_all_requests(front: Front) -> None:
    front.hear()
    front.tell(AddRequests(requests=[_request("a"), _request("b", max_tokens=2)]))
    steps = [front.hear() for _ in range(5)]
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    for step in steps:
        assert isinstance(step, EngineCoreOutputs)
        assert step.step_s > 0
        for output in step.outputs:
            tokens[output.request_id] += output.new_token_ids
    assert tokens == {"a": [7, 8, 9, 7, 8], "b": [7, 8]}


def test_a_request_that_is_refused_is_told_and_the_others_run(front: Front) -> None:
    front.hear()
    front.tell(AddRequests(requests=[_request("refused"), _request("a", max_tokens=1)]))
    refusal, step = front.hear(), front.hear()
    assert isinstance(refusal, RequestRefused)
    assert (refusal.request_id, refusal.error.kind) == ("refused", RequestError.__name__)
    assert isinstance(step, EngineCoreOutputs)
    assert [output.request_id for output in step.outputs] == ["a"]


def test_an_abort_comes_before_the_next_step_and_its_effect_is_told(front: Front, core: FakeCore) -> None:
    front.hear()
    front.tell(AddRequests(requests=[_request("a", max_tokens=10_000)]))
    front.hear_until(EngineCoreOutputs)
    front.tell(AbortRequests(request_ids=["a", "unknown"]))
    for _ in range(20_000):
        news = front.hear()
        if isinstance(news, EngineCoreOutputs) and not news.stats.num_running:
            break
    assert news.outputs == []
    assert core.running == {}


def test_prefixes_are_reset_on_request_while_others_run(front: Front) -> None:
    front.hear()
    front.tell(ResetPrefixCache(number=4))
    assert front.hear() == PrefixCacheReset(number=4, is_done=True)
    front.tell(AddRequests(requests=[_request("a", max_tokens=10_000)]))
    front.hear_until(EngineCoreOutputs)
    front.tell(ResetPrefixCache(number=5))
    assert front.hear_until(PrefixCacheReset)[-1] == PrefixCacheReset(number=5, is_done=False)


def test_a_front_that_reads_nothing_is_heard_all_the_same(front: Front, core: FakeCore) -> None:
    front.tell(AddRequests(requests=[_request("a", max_tokens=1_000_000)]))
    deadline = time.monotonic() + 30
    while core.num_steps < 3000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert core.num_steps >= 3000  # more than sockets hold by default; the fixture then tells it to stop


def test_an_idle_core_takes_no_step(front: Front, core: FakeCore) -> None:
    front.hear()
    front.tell(AddRequests(requests=[_request("a", max_tokens=1)]))
    front.hear()
    front.tell(ResetPrefixCache(number=1))
    front.hear_until(PrefixCacheReset)
    assert core.num_steps == 1


def test_a_core_that_cannot_start_says_why_after_its_stages(context: zmq.Context[Any]) -> None:
    def make_core(config: EngineConfig, on_stage: Any) -> FakeCore:
        on_stage(StageReport(name="read_config", seconds=1.0, result="x"))
        raise PlanError("Too small.", remedy="Grow.", needed_bytes=3)

    front = Front(context, make_core)
    front.tell(START)
    stage, failure = front.hear(), front.hear()
    assert isinstance(stage, StageEnded)
    assert stage.report.name == "read_config"
    assert isinstance(failure, CoreFailed)
    assert (failure.error.kind, failure.error.numbers) == ("PlanError", {"needed_bytes": 3})
    assert front.ended() == 1


def test_a_core_that_breaks_says_why_and_ends(context: zmq.Context[Any], caplog: pytest.LogCaptureFixture) -> None:
    core = _core()
    core.step = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    front = Front(context, lambda config, on_stage: core)
    front.tell(START)
    front.tell(AddRequests(requests=[_request("a")]))
    failure = front.hear_until(CoreFailed)[-1]
    assert isinstance(failure, CoreFailed)
    assert "ZeroDivisionError" in failure.error.fact
    assert front.ended() == 1
    assert core.is_shut_down


def test_a_core_whose_ranks_are_gone_tells_the_failed_requests_and_ends(context: zmq.Context[Any]) -> None:
    """As long as they are there, a request that failed is no reason to end."""
    core = FakeCore(lambda request: request.prompt_token_ids, fail="failing")
    core.plan, core.model_config = FAKE_PLAN, FAKE_MODEL
    front = Front(context, lambda config, on_stage: core)
    front.tell(START)
    front.tell(AddRequests(requests=[_request("failing")]))
    front.hear_until(EngineCoreOutputs)
    front.tell(AddRequests(requests=[_request("well", max_tokens=1)]))
    front.hear_until(EngineCoreOutputs)
    core.has_ranks = False
    front.tell(AddRequests(requests=[_request("failing")]))
    heard = front.hear_until(CoreFailed)
    assert [output.error for news in heard if isinstance(news, EngineCoreOutputs) for output in news.outputs] == [
        "It broke."
    ]
    assert isinstance(heard[-1], CoreFailed) and heard[-1].error.fact == "All ranks were stopped."
    assert front.ended() == 1
    assert core.is_shut_down


def test_nothing_starts_unless_it_is_told_what(context: zmq.Context[Any]) -> None:
    front = Front(context, lambda config, on_stage: _core())
    front.tell(StopCore())
    assert front.ended() == 0


def test_the_state_is_told_between_two_steps(front: Front) -> None:
    front.hear()
    front.tell(AddRequests(requests=[_request("a", max_tokens=500)]))
    front.tell(AskState(number=4))
    told = front.hear_until(StateTold)[-1]
    assert isinstance(told, StateTold)
    stats = told.state.stats  # on a busy machine a step may have come between the two messages
    assert (told.number, stats.num_waiting + stats.num_running) == (4, 1)


def test_a_core_in_which_nobody_can_run_says_what_it_had(context: zmq.Context[Any]) -> None:
    core = _core()

    def step() -> EngineCoreOutputs:
        raise stuck(core.state())

    core.step = step  # type: ignore[method-assign]
    front = Front(context, lambda config, on_stage: core)
    front.tell(START)
    front.tell(AddRequests(requests=[_request("a")]))
    failed = front.hear_until(CoreFailed)[-1]
    assert isinstance(failed, CoreFailed)
    assert failed.state is not None
    assert failed.state.is_stuck
    assert "No request can run" in failed.error.fact
    assert front.ended() == 1
