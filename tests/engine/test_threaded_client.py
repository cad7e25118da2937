"""Cores in processes of their own behind the verbs of one core, without an event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.engine import process_client
from octavo.engine.threaded_client import ThreadedClient
from octavo.errors import CacheTooSmallError, EngineDeadError, InvariantError
from octavo.messages import EngineCoreOutput
from octavo.request import FinishReason
from tests.engine.fake_plan import FAKE_PLAN
from tests.engine.test_process_client import MODULE, ask


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_client, "CORE_MODULE", MODULE)


def make(model: str = "fake", num_cores: int = 2) -> ThreadedClient:
    return ThreadedClient(
        EngineConfig(model=ModelSource(model=model), parallel=ParallelConfig(data_parallel_size=num_cores))
    )


@pytest.fixture
def client() -> Iterator[ThreadedClient]:
    made = make()
    yield made
    made.shutdown()


def run(client: ThreadedClient) -> dict[str, list[EngineCoreOutput]]:
    """All news until nothing is under way."""
    news: dict[str, list[EngineCoreOutput]] = {}
    while client.has_unfinished_requests():
        for output in client.step().outputs:
            news.setdefault(output.request_id, []).append(output)
    return news


def test_requests_run_to_their_ends(client: ThreadedClient) -> None:
    assert client.plan == FAKE_PLAN
    assert (client.model_config.name, client.max_model_len) == ("fake", 1000)
    assert client.stats().num_free_blocks == 2 * 99
    for number in range(65, 75):
        client.add_request(ask(str(number), *[number] * 20, 33, max_tokens=3))
    news = run(client)
    assert {name: [token for each in said for token in each.new_token_ids] for name, said in news.items()} == {
        str(number): [33, number, number] for number in range(65, 75)
    }
    assert client.step().outputs == []
    assert client.reset_prefix_cache()
    assert client.stats().num_blocks == 200


def test_a_refusal_ends_the_request(client: ThreadedClient) -> None:
    client.add_request(ask("refused", 2))
    client.add_request(ask("a", 65, max_tokens=1))
    news = run(client)
    assert news["refused"][0].finish_reason is FinishReason.ERROR
    assert news["refused"][0].error == "The core refuses it. Ask for less."
    assert news["a"][-1].finish_reason is FinishReason.LENGTH


def test_an_aborted_request_is_heard_of_no_more(client: ThreadedClient) -> None:
    client.add_request(ask("a", *[65] * 500, max_tokens=500))
    client.step()
    client.abort_requests(["a", "unknown"])
    assert not client.has_unfinished_requests()
    client.add_request(ask("b", 65, max_tokens=2))
    assert set(run(client)) == {"b"}


def test_a_request_that_cannot_be_sent_is_not_under_way(client: ThreadedClient) -> None:
    with pytest.raises(OverflowError):
        client.add_request(ask("a", 2**70))
    assert not client.has_unfinished_requests()


def test_one_core_that_dies_leaves_the_other_and_two_leave_nothing() -> None:
    client = make("fake-slow")
    try:
        for number in (65, 66):
            client.add_request(ask(str(number), *[number] * 30, max_tokens=30))
        client.step()
        os.kill(client._client.pids[0], signal.SIGKILL)
        news = run(client)
        reasons = sorted(str(said[-1].finish_reason) for said in news.values())
        assert reasons == ["error", "length"]
        client.add_request(ask("b", *[65] * 30, max_tokens=30))
        os.kill(client._client.pids[1], signal.SIGKILL)
        assert run(client)["b"][-1].finish_reason is FinishReason.ERROR
        with pytest.raises(EngineDeadError, match="signal 9"):
            while True:
                client.add_request(ask("c", 65))
                run(client)
        client.abort_requests(["c"])
    finally:
        client.shutdown()
    with pytest.raises((EngineDeadError, InvariantError)):
        client.step()


def test_a_start_that_fails_leaves_no_thread_and_no_process() -> None:
    with pytest.raises(CacheTooSmallError, match="7 bytes"):
        make("fake-unplannable")
    mine = psutil.Process()
    assert not [child for child in mine.children() if MODULE in " ".join(child.cmdline())]


def test_it_ends_once_and_stays_ended(client: ThreadedClient) -> None:
    client.shutdown()
    client.shutdown()
    client.abort_requests(["a"])
    with pytest.raises(InvariantError):
        client.add_request(ask("a", 65))
