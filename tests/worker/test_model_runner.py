"""Steps on a recalling model, driven by the real scheduler and cache manager, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig, layer_name
from octavo.errors import ExecutorError, InvariantError
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, LayerSpec, SlidingWindowSpec
from octavo.messages import CachedRequests, ModelRunnerOutput, NewRequestData, SchedulerOutput, TokenLogprobs
from octavo.request import Request, SamplingParams
from octavo.sched.scheduler import Scheduler
from octavo.worker import model_runner
from octavo.worker.kv_memory import allocate, bind, view
from octavo.worker.model_runner import ModelRunner
from octavo.worker.sampler import Sampler
from tests.worker.recalling_model import VOCAB, RecallingModel, generate, next_token, sizes

CPU = torch.device("cpu")


def hybrid_specs(block_size: int, window: int = 5) -> dict[str, LayerSpec]:
    full, sliding = FullAttentionSpec(**sizes(block_size)), SlidingWindowSpec(**sizes(block_size), window=window)
    return {layer_name(0): full, layer_name(1): sliding, layer_name(2): full, layer_name(3): sliding}


def plan_of(model: RecallingModel, *, num_blocks: int, max_model_len: int, max_batched: int) -> KVCacheConfig:
    options = PlanOptions(
        max_model_len=max_model_len, max_num_batched_tokens=max_batched, num_blocks_override=num_blocks
    )
    shared = [model.shared_layers]
    return plan_kv_cache([model.kv_cache_specs()], [10**7], options, shared_layers_by_rank=shared).configs[0]


def runner_of(model: RecallingModel, config: KVCacheConfig, *, max_num_seqs: int = 8) -> ModelRunner:
    tensors = allocate(config, CPU)
    views = view(config, tensors)
    groups = bind(config, views, model.attention_layers)
    return ModelRunner(
        model,
        config,
        tensors=tensors,
        views=views,
        groups=groups,
        device=CPU,
        max_num_seqs=max_num_seqs,
        num_threads=1,
        seed=0,
    )


class Engine:
    """Scheduler, manager and runner, without anything between them."""

    def __init__(self, model: RecallingModel, *, num_blocks: int, max_batched: int, enable_caching: bool) -> None:
        config = plan_of(model, num_blocks=num_blocks, max_model_len=64, max_batched=max_batched)
        self.runner = runner_of(model, config, max_num_seqs=4)
        self.manager = KVCacheManager(config, enable_caching=enable_caching)
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_batched_tokens=max_batched, max_num_seqs=4, admit_whole_prompt=False),
            self.manager,
            max_model_len=64,
        )
        self.outputs: dict[str, list[int]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}

    def add(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        assert sampling.max_tokens is not None
        self.scheduler.add_request(Request(name, prompt, sampling, max_output_tokens=sampling.max_tokens))
        self.outputs[name], self.prompt_logprobs[name] = [], []

    def step(self) -> None:
        step = self.scheduler.schedule()
        for news in self.scheduler.update_from_output(step, self.runner.execute_model(step)).outputs:
            self.outputs[news.request_id] += news.new_token_ids
            self.prompt_logprobs[news.request_id] += news.prompt_logprobs

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()


SCHEDULES = st.fixed_dictionaries(
    {
        "prompts": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=7),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "max_batched": st.sampled_from([3, 8, 64]),
        "window": st.sampled_from([1, 3, 5, 9]),
        "enable_caching": st.booleans(),
        "tight": st.booleans(),
    }
)


def check_schedule(
    *,
    prompts: list[list[int]],
    block_size: int,
    max_batched: int,
    window: int,
    enable_caching: bool,
    tight: bool,
) -> None:
    """Chunks, batches, prefix hits, blocks left of windows given to others, preemption and resumption."""
    model = RecallingModel(hybrid_specs(block_size, window))
    num_blocks = 1 + (3 if tight else 12) * -(-64 // block_size)
    engine = Engine(model, num_blocks=num_blocks, max_batched=max_batched, enable_caching=enable_caching)
    sampling = SamplingParams(temperature=0.0, max_tokens=9)
    for i, prompt in enumerate(prompts):
        engine.add(str(i), prompt, sampling)
        engine.step()
    engine.run()
    for i, prompt in enumerate(prompts):
        assert engine.outputs[str(i)] == generate(prompt, 9, model.windows)


@given(schedule=SCHEDULES)
@settings(max_examples=12)
def test_any_schedule_gives_each_request_the_tokens_it_would_get_alone(schedule) -> None:
    check_schedule(**schedule)


@pytest.mark.long
@given(schedule=SCHEDULES)
@settings(max_examples=2000)
def test_any_schedule_for_long(schedule) -> None:
    check_schedule(**schedule)


def test_seeded_draws_survive_batches_chunks_and_preemption() -> None:
    model = RecallingModel(hybrid_specs(4))
    sampling = SamplingParams(temperature=2.0, seed=3, max_tokens=20)
    outputs, preemptions = [], 0
    for num_blocks, others, max_batched in ((200, 0, 64), (200, 6, 64), (25, 6, 5)):
        engine = Engine(model, num_blocks=num_blocks, max_batched=max_batched, enable_caching=False)
        for i in range(others):
            engine.add(f"other {i}", [i, 1, 2, 3, 4, 5], SamplingParams(temperature=0.0, max_tokens=30))
        engine.add("seeded", [7, 8, 9, 10, 11], sampling)
        engine.run()
        outputs.append(engine.outputs["seeded"])
        preemptions += engine.scheduler.stats().num_preemptions
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0] != generate([7, 8, 9, 10, 11], 20, model.windows), "temperature 2 is not greedy"
    assert preemptions > 0, "the third pool is too small for all"


def test_a_sharing_layer_reads_its_targets_cache() -> None:
    specs = {layer_name(0): FullAttentionSpec(**sizes(4)), layer_name(1): SlidingWindowSpec(**sizes(4), window=3)}
    model = RecallingModel(specs, shared={layer_name(2): layer_name(1)})
    engine = Engine(model, num_blocks=100, max_batched=5, enable_caching=True)
    engine.add("r", [1, 2, 3, 4, 5, 6, 7], SamplingParams(temperature=0.0, max_tokens=6))
    engine.run()
    assert engine.outputs["r"] == generate([1, 2, 3, 4, 5, 6, 7], 6, [None, 3, 3])


def test_a_planted_error_in_a_table_changes_tokens() -> None:
    """The recalling model would notice: otherwise the tests above prove nothing."""
    model = RecallingModel(hybrid_specs(4))
    engine = Engine(model, num_blocks=100, max_batched=64, enable_caching=False)
    engine.add("r", list(range(10)), SamplingParams(temperature=0.0, max_tokens=6))
    engine.step()
    engine.runner.batch.tables[0].rows[0, 0] += 1
    engine.run()
    assert engine.outputs["r"] != generate(list(range(10)), 6, model.windows)


# -- by hand ----------------------------------------------------------------------------------------------------------


def new(name: str, tokens: list[int], blocks: tuple[list[int], ...], **sampling: object) -> NewRequestData:
    return NewRequestData(
        request_id=name,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling=SamplingParams(temperature=0.0, **sampling),  # type: ignore[arg-type]
        eos_token_ids=(),
        num_computed_tokens=0,
        block_ids=blocks,
    )


def step_of(counts: dict[str, int], **parts: object) -> SchedulerOutput:
    fields: dict[str, object] = {"new_requests": [], "finished_request_ids": [], **parts}
    return SchedulerOutput(step=0, num_scheduled_tokens=counts, **fields)  # type: ignore[arg-type]


@pytest.fixture
def runner() -> ModelRunner:
    model = RecallingModel(hybrid_specs(4))
    return runner_of(model, plan_of(model, num_blocks=64, max_model_len=32, max_batched=32))


WINDOWS = [None, 5, None, 5]


def test_a_request_samples_exactly_when_its_last_known_token_is_computed(runner: ModelRunner) -> None:
    first = runner.execute_model(step_of({"r": 3}, new_requests=[new("r", [1, 2, 3, 4, 5], ([1, 2], [3, 4]))]))
    assert first == ModelRunnerOutput(sampled={})
    cached = CachedRequests(request_ids=["r"], num_computed_tokens=[3])
    second = runner.execute_model(step_of({"r": 2}, cached_requests=cached))
    assert second.sampled == {"r": next_token([1, 2, 3, 4, 5], WINDOWS)}


def test_a_step_without_tokens_only_forgets(runner: ModelRunner) -> None:
    runner.execute_model(step_of({"r": 1}, new_requests=[new("r", [1], ([1], [2]))]))
    assert runner.execute_model(step_of({}, finished_request_ids=["r"])) == ModelRunnerOutput(sampled={})
    assert runner.batch.num_requests == 0


def test_log_probabilities_come_for_those_who_asked(runner: ModelRunner) -> None:
    requests = [
        new("none", [1, 2], ([1], [2])),
        new("two", [3, 4], ([3], [4]), logprobs=2),
        new("chosen", [5], ([5], [6]), logprobs=0),
    ]
    output = runner.execute_model(step_of({"none": 2, "two": 2, "chosen": 1}, new_requests=requests))
    assert output.logprobs.keys() == {"two", "chosen"}
    expected = torch.log_softmax(-(torch.arange(VOCAB) - output.sampled["two"]).abs().double(), 0)
    found = output.logprobs["two"]
    assert (found.token_ids[0], found.rank, len(found.token_ids)) == (output.sampled["two"], 1, 3)
    assert found.logprobs == pytest.approx(expected[found.token_ids].tolist(), abs=1e-5)
    assert len(output.logprobs["chosen"].token_ids) == 1


@pytest.mark.parametrize("chunks", [[7], [3, 4], [1, 1, 5], [6, 1]])
@pytest.mark.parametrize("logits_bytes", [1, model_runner.PROMPT_LOGITS_BYTES])
def test_prompt_log_probabilities_are_the_same_in_chunks(
    chunks: list[int], logits_bytes: int, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry i speaks of prompt token i + 1, whatever the chunks, and however few logits exist at once."""
    monkeypatch.setattr(model_runner, "PROMPT_LOGITS_BYTES", logits_bytes)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    found: list[TokenLogprobs] = []
    done = 0
    for count in chunks:
        parts = (
            {"new_requests": [new("r", prompt, ([1, 2], [3, 4]), prompt_logprobs=1)]}
            if done == 0
            else {"cached_requests": CachedRequests(request_ids=["r"], num_computed_tokens=[done])}
        )
        found += runner.execute_model(step_of({"r": count}, **parts)).prompt_logprobs.get("r", [])
        done += count
    assert [entry.token_ids[0] for entry in found] == prompt[1:]
    for i, entry in enumerate(found):
        best = next_token(prompt[: i + 1], WINDOWS)
        logits = -(torch.arange(VOCAB) - best).abs().double()
        assert entry.token_ids[1] == best
        assert entry.logprobs[0] == pytest.approx(torch.log_softmax(logits, 0)[prompt[i + 1]].item(), abs=1e-5)


def test_prompt_log_probabilities_of_a_great_vocabulary_take_bounded_memory() -> None:
    """A prompt of 32k tokens over 262,144 words would be 32 GiB of logits: no more than the bound exist at once."""
    vocab, most, tokens = 262_144, 0, 40

    class Wide:
        vocab_size = vocab

        def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
            nonlocal most
            most = max(most, len(hidden) * vocab * 4)
            return hidden.expand(-1, vocab).contiguous()

    runner = ModelRunner.__new__(ModelRunner)
    runner._model, runner._sampler = Wide(), Sampler(vocab_size=vocab, num_threads=1)
    found = runner._describe(torch.zeros(tokens, 1), np.arange(tokens), 5)
    assert 0 < most <= model_runner.PROMPT_LOGITS_BYTES
    assert [(entry.token_ids, entry.rank) for entry in found] == [([i, 0, 1, 2, 3, 4], i + 1) for i in range(tokens)]


def test_a_resumed_request_that_has_output_reports_its_prompt_no_more(runner: ModelRunner) -> None:
    data = NewRequestData(
        request_id="r",
        token_ids=[1, 2, 3, 9],
        num_prompt_tokens=3,
        sampling=SamplingParams(temperature=0.0, prompt_logprobs=1),
        eos_token_ids=(),
        num_computed_tokens=0,
        block_ids=([1], [2]),
    )
    output = runner.execute_model(step_of({"r": 4}, new_requests=[data]))
    assert output.prompt_logprobs == {}
    assert output.sampled == {"r": next_token([1, 2, 3, 9], WINDOWS)}


def test_nothing_is_written_where_nothing_is_kept(runner: ModelRunner) -> None:
    """The windowed group's first block is the null block: what left the window before it was computed has no memory."""
    data = new("r", list(range(12)), ([1, 2, 3], [0, 4, 5]))
    output = runner.execute_model(step_of({"r": 12}, new_requests=[data]))
    assert output.sampled == {"r": next_token(list(range(12)), WINDOWS)}
    assert not runner.kv_caches[layer_name(0)].key[0].any()


def test_more_tokens_than_are_known_is_a_contradiction(runner: ModelRunner) -> None:
    with pytest.raises(InvariantError, match="request 'r' is to compute 3 tokens but has 2"):
        runner.execute_model(step_of({"r": 3}, new_requests=[new("r", [1, 2], ([1], [2]))]))


def test_logits_that_are_not_numbers_fail_the_step(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RecallingModel, "compute_logits", lambda self, hidden: torch.full((len(hidden), VOCAB), torch.nan)
    )
    with pytest.raises(ExecutorError, match="not numbers"):
        runner.execute_model(step_of({"r": 1}, new_requests=[new("r", [1], ([1], [2]))]))
    assert runner.execute_model(step_of({}, finished_request_ids=["r"])).sampled == {}, "and it can be forgotten"


def test_metadata_is_contiguous_and_of_the_types_that_backends_read(runner: ModelRunner) -> None:
    requests = [new(str(i), [i] * (i + 1), ([10 + 2 * i, 11 + 2 * i], [30 + 2 * i, 31 + 2 * i])) for i in range(5)]
    runner.execute_model(step_of({str(i): i + 1 for i in range(5)}, new_requests=requests))
    cached = CachedRequests(request_ids=["3"], num_computed_tokens=[4])
    runner.execute_model(step_of({"3": 1}, cached_requests=cached))
    for group in runner.groups:
        metadata = group.metadata
        assert metadata is not None
        for tensor, dtype in (
            (metadata.query_start, torch.int32),
            (metadata.seq_lens, torch.int32),
            (metadata.block_table, torch.int32),
            (metadata.slot_mapping, torch.int64),
        ):
            assert tensor.dtype is dtype
            assert tensor.is_contiguous()
        first = 16 if group.index == 0 else 36
        assert metadata.block_table[0].tolist()[:2] == [first, first + 1]
        assert np.array_equal(metadata.slot_mapping.numpy(), [(first + 1) * 4])
