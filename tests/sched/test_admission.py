"""Requests that can never be served are refused when they arrive, with both numbers and a remedy that works."""

from __future__ import annotations

import re

import pytest

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.sched.admission import step_limit
from tests.sched.harness import Bench, full, make_request, sliding


def refusal(bench: Bench, **request) -> RequestError:
    with pytest.raises(RequestError) as caught:
        bench.add(make_request("x", **request))
    assert not bench.scheduler.has_unfinished_requests()
    return caught.value


def runs(bench: Bench, **request) -> bool:
    bench.add(make_request("y", **request))
    bench.run()
    bench.check_results()
    return True


def test_an_empty_prompt() -> None:
    error = refusal(Bench(), prompt=[])
    assert str(error) == "Request 'x' has an empty prompt. Give it at least one token."


def test_a_prompt_that_leaves_no_room_for_output() -> None:
    bench = Bench(max_model_len=20)
    error = refusal(bench, prompt=range(20), max_tokens=1)
    assert "has 20 tokens" in str(error)
    assert "the 20 of --max-model-len" in str(error)
    assert error.numbers == {"num_prompt_tokens": 20, "max_model_len": 20}
    assert "Shorten the prompt to 19 tokens" in error.remedy
    assert runs(bench, prompt=range(19), max_tokens=1)


def test_prompt_and_output_together() -> None:
    bench = Bench(max_model_len=20)
    error = refusal(bench, prompt=range(12), max_tokens=9)
    assert "12 prompt tokens + 9 output tokens = 21, more than the 20" in str(error)
    assert "Lower max_tokens to 8" in error.remedy
    assert runs(bench, prompt=range(12), max_tokens=8)


def test_a_prompt_that_does_not_fit_one_step_where_it_must() -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, enable_chunked_prefill=False)
    error = refusal(Bench(config=config), prompt=range(17))
    assert "has 17 tokens; without chunked prefill it must fit one step of 16 tokens" in str(error)
    assert runs(Bench(config=config), prompt=range(16))
    assert runs(Bench(config=SchedulerConfig(max_num_batched_tokens=16)), prompt=range(17))


@pytest.mark.parametrize("specs", [[full()], [full(), sliding(6)], [sliding(6), sliding(9), full()]])
def test_a_request_larger_than_the_whole_pool(specs: list) -> None:
    def bench() -> Bench:
        return Bench(specs, num_blocks=13, max_model_len=100, config=SchedulerConfig(max_num_batched_tokens=4))

    error = refusal(bench(), prompt=range(3), max_tokens=90)
    numbers = error.numbers
    assert numbers["usable_blocks"] == 12 < numbers["needed_blocks"]
    assert f"may need {numbers['needed_blocks']} blocks for its 92 tokens; the whole KV cache has 12" in str(error)
    advised = int(re.search(r"max_tokens to (\d+)", error.remedy)[1])
    assert runs(bench(), prompt=range(3), max_tokens=advised)
    refusal(bench(), prompt=range(3), max_tokens=advised + 1)


def test_a_prompt_larger_than_the_whole_pool() -> None:
    def bench() -> Bench:
        return Bench(num_blocks=4, max_model_len=100)

    error = refusal(bench(), prompt=range(50), max_tokens=3)
    assert "Shorten the prompt to 12 tokens and ask for max_tokens 1" in error.remedy
    assert runs(bench(), prompt=range(12), max_tokens=1)
    refusal(bench(), prompt=range(13), max_tokens=1)


def test_no_request_fits_a_pool_of_nothing() -> None:
    error = refusal(Bench(num_blocks=1), prompt=[1], max_tokens=1)
    assert error.remedy == "Give the KV cache more memory (--kv-memory)."


def test_a_refused_request_blocks_nobody() -> None:
    bench = Bench(num_blocks=4, max_model_len=100)
    bench.add(make_request("a", range(6)))
    with pytest.raises(RequestError):
        bench.add(make_request("x", range(60)))
    bench.add(make_request("b", range(6)))
    bench.run()
    bench.check_results()
    assert sorted(bench.reasons) == ["a", "b"]


def test_an_id_in_use() -> None:
    bench = Bench()
    bench.add(make_request("a", range(6)))
    with pytest.raises(RequestError, match="'a' is in use"):
        bench.scheduler.add_request(make_request("a", range(6)))
    bench.run()
    bench.add(make_request("a", range(3)))


def test_the_step_limit_is_the_smaller_of_budget_and_chunk() -> None:
    assert step_limit(SchedulerConfig(max_num_batched_tokens=10)) == 10
    assert step_limit(SchedulerConfig(max_num_batched_tokens=10, max_chunk_tokens=3)) == 3
    assert step_limit(SchedulerConfig(max_num_batched_tokens=10, max_chunk_tokens=30)) == 10
