"""Children share their parent's blocks, wait for its prompt, and never need it."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.kv.specs import LayerSpec
from octavo.messages import SchedulerOutput
from octavo.request import FinishReason, SamplingParams
from tests.null_executor import MemoryFault, NullRank
from tests.sched.harness import Bench, full, make_request, sliding


def family(bench: Bench, size: int, prompt: list[int], **fields) -> list[str]:
    names = [f"a{number}" for number in range(size)]
    for name in names:
        bench.add(make_request(name, prompt, parent_id=None if name == "a0" else "a0", **fields))
    return names


@pytest.mark.parametrize("enable_caching", [True, False])
@pytest.mark.parametrize("max_chunk_tokens", [None, 5])
def test_the_prompt_is_computed_once_and_its_blocks_are_referenced_n_times(
    enable_caching: bool, max_chunk_tokens: int | None
) -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, max_chunk_tokens=max_chunk_tokens)
    bench = Bench(num_blocks=64, enable_caching=enable_caching, config=config)
    names = family(bench, 4, list(range(26)), max_tokens=3)
    num_computed = 0
    while bench.manager.request_ids() < set(names):
        step, _ = bench.step()
        num_computed += step.num_tokens
    # The parent computed 26 tokens and one more; each child the last one of the prompt.
    assert num_computed == 26 + 1 + 3
    first = bench.manager.block_ids("a0")[0]
    for block in first[:6]:
        assert bench.manager._pool.references(block) == 4
    assert len(step.block_copies) == 3, "the prompt's last block is not full"
    assert bench.manager.counts().used == 6 + 4
    bench.run()
    bench.check_results()


def test_children_wait_outside_the_line() -> None:
    bench = Bench(config=SchedulerConfig(max_num_batched_tokens=8))
    family(bench, 3, list(range(12)), max_tokens=2)
    bench.add(make_request("b", range(30, 34), max_tokens=2))
    assert bench.step()[0].num_scheduled_tokens == {"a0": 8}
    assert bench.scheduler.stats().num_waiting == 3
    assert bench.step()[0].num_scheduled_tokens == {"a0": 4, "b": 4}
    assert bench.step()[0].num_scheduled_tokens == {"a0": 1, "b": 1, "a1": 1, "a2": 1}
    bench.run()
    bench.check_results()


def test_a_parent_that_ends_at_once_keeps_its_blocks_for_its_children() -> None:
    bench = Bench(enable_caching=False)
    family(bench, 3, list(range(10)), max_tokens=1)
    bench.step()
    assert bench.scheduler.forks.kept_ids() == ["a0"]
    assert bench.step()[0].num_scheduled_tokens == {"a1": 1, "a2": 1}
    assert bench.scheduler.forks.kept_ids() == []
    bench.check_results()


@pytest.mark.parametrize("how", ["abort", "fail"])
def test_children_of_a_lost_parent_run_by_themselves(how: str) -> None:
    bench = Bench()
    family(bench, 3, list(range(10)))
    if how == "abort":
        bench.abort("a0")
    else:
        bench.fail_step()
    bench.run()
    bench.check_results()
    assert [bench.reasons[name] for name in ("a1", "a2")] == [FinishReason.LENGTH] * 2


def test_a_parked_child_can_be_aborted() -> None:
    bench = Bench()
    family(bench, 3, list(range(10)), max_tokens=1)
    bench.abort("a1")
    assert bench.scheduler.stats().num_waiting == 2
    bench.run()
    bench.check_results()


def test_a_beam_goes_on_from_where_its_parent_ended() -> None:
    bench = Bench(enable_caching=False)
    bench.add(make_request("p", range(10), max_tokens=1, keep_blocks=True))
    bench.step()
    parent = bench.requests["p"]
    for name, token_id in (("x", 7), ("y", 8)):
        tokens = [*parent.token_ids[:10].tolist(), token_id]
        bench.add(make_request(name, tokens, max_tokens=1, parent_id="p", keep_blocks=True))
    step, _ = bench.step()
    assert step.num_scheduled_tokens == {"x": 1, "y": 1}
    assert bench.scheduler.forks.kept_ids() == ["p", "y", "x"]
    assert bench.scheduler.abort_request("p")
    assert not bench.scheduler.abort_request("p")
    assert bench.manager.counts().used == 2 + 2, "two full blocks of both, and the last one of each"
    bench.check_results()


def test_kept_blocks_are_given_back_when_somebody_lacks_room() -> None:
    bench = Bench(num_blocks=8, enable_caching=False)
    bench.add(make_request("p", range(16), max_tokens=1, keep_blocks=True))
    bench.step()
    bench.add(make_request("q", range(16), max_tokens=8))
    bench.run()
    assert bench.scheduler.forks.kept_ids() == []
    assert bench.scheduler.stats().num_preemptions == 0
    bench.check_results()


def test_the_id_of_a_kept_request_is_in_use() -> None:
    bench = Bench()
    bench.add(make_request("p", range(4), max_tokens=1, keep_blocks=True))
    bench.step()
    with pytest.raises(RequestError, match="in use"):
        bench.add(make_request("p", range(4)))
    assert bench.scheduler.abort_request("p")
    del bench.reasons["p"]
    bench.add(make_request("p", range(4)))
    bench.run()
    bench.check_results()


@pytest.mark.parametrize(
    ("tokens", "salt"),
    [([*range(9), 60, 61], None), (list(range(11)), "other")],
    ids=["another prefix", "another salt"],
)
def test_a_child_of_something_else_shares_nothing(tokens: list[int], salt: str | None) -> None:
    bench = Bench([full(), sliding(6)], enable_caching=False)
    bench.add(make_request("p", range(10), max_tokens=1, keep_blocks=True))
    bench.step()
    bench.add(make_request("c", tokens, max_tokens=1, parent_id="p", salt=salt))
    assert bench.step()[0].num_scheduled_tokens == {"c": 11}
    bench.check_results()


def test_each_completion_has_a_stream_of_its_own_and_only_the_first_reports_the_prompt() -> None:
    bench = Bench(num_blocks=64)
    bench.add(make_request("a0", range(10), sampling=SamplingParams(prompt_logprobs=0, max_tokens=4)))
    bench.add(make_request("a1", range(10), parent_id="a0"))
    assert bench.step()[0].num_scheduled_tokens == {"a0": 10}
    assert bench.step()[0].num_scheduled_tokens == {"a0": 1, "a1": 1}
    bench.run()
    bench.check_results()


class CopiesNothing(NullRank):
    def copy_blocks(self, step: SchedulerOutput) -> None:
        """Leave the children's last blocks as they are."""


class CopiesTooLate(NullRank):
    def copy_blocks(self, step: SchedulerOutput) -> None:
        """Copy after the step has written."""

    def read(self, step: SchedulerOutput, group: int, spec: LayerSpec) -> None:
        super().copy_blocks(step)
        super().read(step, group, spec)


@pytest.mark.parametrize("rank_class", [CopiesNothing, CopiesTooLate])
def test_a_rank_that_copies_wrongly_is_noticed(rank_class: type[NullRank]) -> None:
    bench = Bench(rank_class=rank_class, enable_caching=False)
    bench.add(make_request("p", range(10), max_tokens=1, keep_blocks=True))
    bench.step()
    bench.add(make_request("x", [*range(10), 7], max_tokens=1, parent_id="p"))
    bench.add(make_request("y", [*range(10), 8], max_tokens=2, parent_id="p"))
    with pytest.raises(MemoryFault):
        bench.run()
