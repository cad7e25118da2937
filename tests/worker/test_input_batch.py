"""The batch of requests, against a dictionary of plain lists."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.errors import InvariantError
from octavo.messages import CachedRequests, NewRequestData, SchedulerOutput
from octavo.request import SamplingParams
from octavo.worker.block_table import BlockTable
from octavo.worker.input_batch import InputBatch

NUM_ROWS = 5
BLOCK_SIZES = (4, 3)

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


def make_batch(num_rows: int = NUM_ROWS) -> InputBatch:
    tables = [BlockTable(num_rows=num_rows, block_size=size, max_blocks=400) for size in BLOCK_SIZES]
    return InputBatch(num_rows=num_rows, tables=tables, seed=0)


def new(
    name: str, tokens: list[int], *, num_prompt: int | None = None, num_computed: int = 0, **sampling: object
) -> NewRequestData:
    return NewRequestData(
        request_id=name,
        token_ids=tokens,
        num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        eos_token_ids=(),
        num_computed_tokens=num_computed,
        block_ids=([], []),
    )


def step_of(counts: dict[str, int], **parts: object) -> SchedulerOutput:
    fields: dict[str, object] = parts
    return SchedulerOutput(step=0, num_scheduled_tokens=counts, **fields)  # type: ignore[arg-type]


class ObviousRequest:
    def __init__(self, tokens: list[int], computed: int, tables: list[list[int]], temperature: float) -> None:
        self.tokens, self.computed, self.tables, self.temperature = tokens, computed, tables, temperature


class BatchMachine(RuleBasedStateMachine):
    """Requests come, are extended, sample, go; after each rule the batch says what the dictionary says."""

    @initialize()
    def start(self) -> None:
        self.batch = make_batch()
        self.model: dict[str, ObviousRequest] = {}
        self.num_seen = 0

    @precondition(lambda self: len(self.model) < NUM_ROWS)
    @rule(tokens=TOKENS, data=st.data(), temperature=st.sampled_from([0.0, 0.5, 1.5]))
    def admit(self, tokens: list[int], data: st.DataObject, temperature: float) -> None:
        name = str(self.num_seen)
        self.num_seen += 1
        computed = data.draw(st.integers(0, len(tokens) - 1))
        blocks = [[self.num_seen * 100 + i for i in range(-(-len(tokens) // size))] for size in BLOCK_SIZES]
        admitted = NewRequestData(
            request_id=name,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            sampling=SamplingParams(temperature=temperature),
            eos_token_ids=(),
            num_computed_tokens=computed,
            block_ids=tuple(blocks),
        )
        self.batch.update(step_of({}, new_requests=[admitted]))
        self.model[name] = ObviousRequest(list(tokens), computed, [list(part) for part in blocks], temperature)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def forget_some_and_one_unknown(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1))
        self.batch.update(step_of({}, finished_request_ids=[*names, "never seen"]))
        for name in names:
            del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A step over some requests: each computes a part, those that reach their end get a next token."""
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1))
        counts = {}
        cached = CachedRequests(request_ids=names, num_computed_tokens=[self.model[name].computed for name in names])
        for name in names:
            request = self.model[name]
            counts[name] = data.draw(st.integers(1, len(request.tokens) - request.computed))
            new_ids = tuple(data.draw(st.lists(st.integers(1, 99), max_size=2)) for _ in BLOCK_SIZES)
            if any(new_ids) or data.draw(st.booleans()):
                cached.new_block_ids[name] = tuple(map(list, new_ids))
            for table, ids in zip(request.tables, new_ids, strict=True):
                table += ids
        step = step_of(counts, cached_requests=cached)
        self.batch.update(step)
        inputs = self.batch.flatten(step)
        ordered = [self.batch.request_ids[row] for row in inputs.rows]
        assert sorted(ordered) == sorted(names)
        assert inputs.rows.tolist() == sorted(inputs.rows.tolist())
        self.check_flattened(inputs, ordered, counts)
        sampling = [ordered[i] for i in inputs.samplers]
        ended = [n for n in ordered if self.model[n].computed + counts[n] == len(self.model[n].tokens)]
        assert sampling == ended
        for name in names:
            self.model[name].computed += counts[name]
        self.batch.append_tokens(inputs.rows[inputs.samplers], inputs.samplers + 1000)
        for name, token in zip(sampling, (inputs.samplers + 1000).tolist(), strict=True):
            self.model[name].tokens.append(token)

    def check_flattened(self, inputs, ordered: list[str], counts: dict[str, int]) -> None:
        for i, name in enumerate(ordered):
            request = self.model[name]
            part = slice(inputs.query_start[i], inputs.query_start[i + 1])
            places = list(range(request.computed, request.computed + counts[name]))
            assert inputs.positions[part].tolist() == places
            assert inputs.token_ids[part].tolist() == [request.tokens[p] for p in places]
            assert set(inputs.token_rows[part].tolist()) == {int(inputs.rows[i])}
            assert inputs.seq_lens[i] == places[-1] + 1
        assert len(inputs.token_ids) == inputs.query_start[-1] == sum(counts.values())

    @invariant()
    def the_batch_says_what_the_dictionary_says(self) -> None:
        if not hasattr(self, "batch"):
            return
        batch = self.batch
        assert sorted(batch.request_ids) == sorted(self.model)
        assert batch.num_requests == len(self.model)
        for row, name in enumerate(batch.request_ids):
            request = self.model[name]
            assert batch.num_tokens[row] == len(request.tokens)
            assert batch.history[row, : len(request.tokens)].tolist() == request.tokens
            assert batch.sampling.options["temperature"][row] == request.temperature
            assert batch.sampling.is_plain[row] == (request.temperature == 0)
            for table, ids in zip(batch.tables, request.tables, strict=True):
                assert table.num_blocks[row] == len(ids)
                assert table.rows[row, : len(ids)].tolist() == ids


def test_the_batch_against_the_dictionary() -> None:
    run_state_machine_as_test(BatchMachine, settings=settings(max_examples=15, stateful_step_count=20))


@pytest.mark.long
def test_the_batch_against_the_dictionary_for_long() -> None:
    run_state_machine_as_test(BatchMachine, settings=settings(max_examples=2000, stateful_step_count=50))


def test_the_history_grows_with_the_longest_request_and_keeps_the_others() -> None:
    batch = make_batch()
    batch.update(step_of({}, new_requests=[new("short", [7, 8, 9])]))
    batch.update(step_of({}, new_requests=[new("long", list(range(5000)))]))
    assert batch.history[0, :3].tolist() == [7, 8, 9]
    assert batch.history[1, :5000].tolist() == list(range(5000))


def test_prompt_log_probabilities_end_with_the_prompt() -> None:
    batch = make_batch()
    requests = [new("first", [1, 2], prompt_logprobs=3), new("resumed", [1, 2], num_prompt=1, prompt_logprobs=3)]
    batch.update(step_of({}, new_requests=requests))
    assert batch.num_prompt_logprobs[:2].tolist() == [3, -1]


def test_tokens_that_another_rank_sampled_are_appended_to_those_who_are_still_here() -> None:
    batch = make_batch()
    batch.update(step_of({}, new_requests=[new("a", [1, 2]), new("b", [3]), new("c", [4, 5, 6])]))
    batch.update(step_of({}, finished_request_ids=["a"]))
    batch.append_earlier({"a": 7, "b": 8, "c": 9})
    known = {name: batch.history[row, : batch.num_tokens[row]].tolist() for row, name in enumerate(batch.request_ids)}
    assert known == {"b": [3, 8], "c": [4, 5, 6, 9]}
    batch.append_earlier({})
    assert batch.num_tokens[:2].tolist() == [4, 2]


def test_contradictions_are_named() -> None:
    batch = make_batch(num_rows=1)
    batch.update(step_of({}, new_requests=[new("a", [1])]))
    with pytest.raises(InvariantError, match="adds request 'a', which this rank holds already"):
        batch.update(step_of({}, new_requests=[new("a", [1])]))
    with pytest.raises(InvariantError, match="runs more than 1 requests at once"):
        batch.update(step_of({}, new_requests=[new("b", [1])]))
    with pytest.raises(InvariantError, match="names request 'c', which this rank does not hold"):
        batch.flatten(step_of({"c": 1}))
