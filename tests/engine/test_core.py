"""The engine core on null ranks: the start-up stage by stage, refusals, failing steps, and whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig, SchedulerConfig, read_environment
from octavo.engine.core import EngineCore
from octavo.errors import (
    AutoFitError,
    CacheTooSmallError,
    ConfigError,
    ExecutorError,
    ModelFileError,
    RequestError,
)
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config
from octavo.formats.source import locate
from octavo.messages import EngineCoreOutput, EngineCoreRequest, SchedulerOutput, StageReport
from octavo.request import FinishReason, SamplingParams
from octavo.worker.model_runner import ModelRunner
from tests.null_executor import NullExecutor, generate_alone
from tests.parity.tiny import HYBRID

VOCAB_SIZE = HYBRID["vocab_size"]
BLOCK_SIZE = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hybrid model of 5 layers and 256 positions: its config, without weights."""
    (tmp_path / "config.json").write_text(json.dumps({**HYBRID, "architectures": ["Gemma3ForCausalLM"]}))
    return tmp_path


class Engine:
    """An `EngineCore` over null ranks, and all that came out of it."""

    def __init__(
        self,
        folder: Path,
        *,
        available_bytes: int = 1 << 20,
        num_ranks: int = 1,
        max_model_len: int | None = None,
        cache: dict[str, Any] | None = None,
        scheduler: dict[str, Any] | None = None,
        on_stage: Callable[[StageReport], None] | None = None,
    ) -> None:
        config = EngineConfig(
            model=ModelSource(model=str(folder), max_model_len=max_model_len),
            cache=CacheConfig(block_size=BLOCK_SIZE, **(cache or {})),
            scheduler=SchedulerConfig(**{"max_num_batched_tokens": 32, **(scheduler or {})}),
            parallel=ParallelConfig(tensor_parallel_size=num_ranks),
        )
        model_config = load_model_config(locate(config.model, read_environment()))
        specs, _ = kv_cache_specs(model_config, block_size=BLOCK_SIZE, dtype="float32", tensor_parallel_size=num_ranks)
        self.executor = NullExecutor([specs] * num_ranks, vocab_size=VOCAB_SIZE, available_bytes=available_bytes)
        self.core = EngineCore(config, on_stage=on_stage, executor=self.executor)
        self.news: dict[str, list[EngineCoreOutput]] = {}

    def add(
        self,
        request_id: str,
        prompt: Any,
        max_tokens: int | None = 8,
        form: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.news[request_id] = []
        self.core.add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                sampling=SamplingParams(max_tokens=max_tokens, structured_outputs=form),
                **fields,
            )
        )

    def step(self) -> None:
        for output in self.core.step().outputs:
            self.news[output.request_id].append(output)

    def run(self) -> None:
        while self.core.has_unfinished_requests():
            self.step()

    def tokens(self, request_id: str) -> list[int]:
        return [token_id for output in self.news[request_id] for token_id in output.new_token_ids]


def alone(prompt: Any, max_tokens: int) -> list[int]:
    return generate_alone(
        list(prompt), SamplingParams(max_tokens=max_tokens), vocab_size=VOCAB_SIZE, max_output_tokens=max_tokens
    )[0]


# -- start-up -----------------------------------------------------------------------------------------------------


def test_the_stages_of_a_start(folder: Path) -> None:
    stages: list[StageReport] = []
    Engine(folder, on_stage=stages.append)
    assert [(stage.name, stage.rank) for stage in stages] == [
        ("locate_model", None),
        ("read_config", None),
        ("create_executor", None),
        ("load_model", 0),
        ("start_executor", None),
        ("get_kv_cache_specs", None),
        ("determine_available_memory", None),
        ("plan_kv_cache", None),
        ("initialize_from_config", None),
        ("warm_up", None),
        ("build_scheduler", None),
    ]
    results = {stage.name: stage.result for stage in stages}
    assert results["read_config"] == "Gemma3ForCausalLM, 5 layers, vocabulary 320, up to 256 tokens"
    assert results["get_kv_cache_specs"] == "cached layers: 2 full, 3 sliding_window"
    assert results["determine_available_memory"] == "1.00 MiB per rank"
    assert all(stage.seconds >= 0 and "\n" not in stage.result for stage in stages)


def test_the_ranks_hear_the_contract_in_its_order(folder: Path) -> None:
    engine = Engine(folder, num_ranks=2)
    for rank in engine.executor.ranks:
        assert rank.calls == [
            "init_worker",
            "init_device",
            "load_model",
            "get_kv_cache_specs",
            "get_shared_layers",
            "determine_available_memory",
            "initialize_from_config",
            "warm_up",
        ]
        assert rank.num_blocks == engine.core.plan.configs[rank.global_rank].num_blocks


def test_the_length_is_the_models_own(folder: Path) -> None:
    engine = Engine(folder)
    assert engine.core.max_model_len == 256 == engine.core.plan.configs[0].max_model_len


def test_a_length_can_be_asked_for(folder: Path) -> None:
    assert Engine(folder, max_model_len=100).core.max_model_len == 100


def test_a_length_beyond_the_models_own_is_refused_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Engine(folder, max_model_len=257)
    assert "--max-model-len is 257" in str(caught.value)
    assert "at most 256 tokens" in str(caught.value)
    assert caught.value.remedy == "Set it to at most 256, or leave it out."


def test_a_length_fitted_to_the_budget(folder: Path) -> None:
    engine = Engine(folder, max_model_len=-1, available_bytes=60_000)
    assert 1 < engine.core.max_model_len < 256
    engine.add("a", range(3, 20), max_tokens=None)
    engine.run()
    assert len(engine.tokens("a")) == engine.core.max_model_len - 17
    with pytest.raises(AutoFitError):
        Engine(folder, max_model_len=-1, available_bytes=100)


def test_a_budget_too_small_for_the_length_says_what_would_do(folder: Path) -> None:
    with pytest.raises(CacheTooSmallError) as caught:
        Engine(folder, available_bytes=60_000)
    fitting = caught.value.numbers
    length = next(value for name, value in fitting.items() if "len" in name and value < 256)
    assert Engine(folder, available_bytes=60_000, max_model_len=length).core.max_model_len == length
    with pytest.raises(CacheTooSmallError):
        Engine(folder, available_bytes=60_000, max_model_len=length + 1)


@pytest.mark.parametrize("chunk", [None, 1, 5, 8, 13])
@pytest.mark.parametrize("admit_whole_prompt", [True, False])
def test_the_smallest_budget_serves_the_longest_request(
    folder: Path, chunk: int | None, admit_whole_prompt: bool
) -> None:
    """What the planner reserves for a request of full length is what the cache manager needs for it."""
    scheduler = {"max_chunk_tokens": chunk, "admit_whole_prompt": admit_whole_prompt}
    with pytest.raises(CacheTooSmallError) as caught:
        Engine(folder, available_bytes=10_000, scheduler=scheduler)
    budget = next(
        int(word) for word in caught.value.remedy.replace(".", "").split() if word.isdigit() and int(word) > 256
    )
    with pytest.raises(CacheTooSmallError):
        Engine(folder, available_bytes=budget - 1, scheduler=scheduler)
    engine = Engine(folder, available_bytes=budget, scheduler=scheduler)
    prompt = [3 + place * place % 300 for place in range(180)]
    engine.add("a", prompt, max_tokens=76)
    engine.add("b", prompt[:100], max_tokens=76)
    engine.run()
    assert engine.tokens("a") == alone(prompt, 76)
    assert engine.tokens("b") == alone(prompt[:100], 76)


def test_a_chunk_cap_reaches_the_plan(folder: Path) -> None:
    engine = Engine(folder, scheduler={"max_chunk_tokens": 8})
    assert engine.core.plan.configs[0].max_chunk_tokens == 8


def test_a_failed_start_stops_the_ranks(folder: Path) -> None:
    made: list[NullExecutor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NullExecutor, "start", lambda self, start=NullExecutor.start: (made.append(self), start(self)))
        with pytest.raises(CacheTooSmallError):
            Engine(folder, available_bytes=60_000)
    assert [executor.is_running for executor in made] == [False]
    assert made[0].ranks[0].calls[-1] == "shutdown"


def test_no_model_no_ranks(folder: Path) -> None:
    config = EngineConfig(model=ModelSource(model=str(folder / "nothing-here.gguf")))
    with pytest.raises(ModelFileError):
        EngineCore(config)


# -- requests -----------------------------------------------------------------------------------------------------


def test_many_requests_come_out_as_each_alone(folder: Path) -> None:
    engine = Engine(folder, max_model_len=100, available_bytes=110_000, scheduler={"max_chunk_tokens": 9})
    prompts = {f"r{number}": [3 + (7 * number * i + i * i) % 300 for i in range(5 + 6 * number)] for number in range(9)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=30)
    engine.run()
    assert all(engine.tokens(name) == alone(prompt, 30) for name, prompt in prompts.items())
    stats = engine.core.stats()
    assert stats.num_preemptions > 0
    assert stats.num_used_blocks == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 4, "empty prompt"),
        ([3, 320], 4, "Token id 320 in the prompt"),
        ([3] * 256, None, "256 tokens"),
        ([3] * 250, 7, "250 prompt tokens + 7 output tokens = 257, more than the 256"),
    ],
)
def test_refusals_come_at_once_and_leave_nothing(folder: Path, prompt: Any, max_tokens: Any, message: str) -> None:
    engine = Engine(folder)
    with pytest.raises(RequestError, match=message.replace("+", r"\+")):
        engine.add("x", prompt, max_tokens)
    assert not engine.core.has_unfinished_requests()
    engine.add("x", [3, 4, 5])
    engine.run()
    assert engine.tokens("x") == alone([3, 4, 5], 8)


def test_aborts(folder: Path) -> None:
    engine = Engine(folder)
    engine.add("a", range(3, 20), max_tokens=100)
    engine.add("b", range(30, 50), max_tokens=5)
    engine.step()
    engine.core.abort_requests(["a", "nobody", "a"])
    assert engine.core.stats().num_running == 1
    engine.run()
    assert engine.tokens("b") == alone(range(30, 50), 5)
    engine.core.abort_requests(["b"])
    assert engine.core.stats().num_used_blocks == 0


def test_a_step_of_nothing(folder: Path) -> None:
    outputs = Engine(folder).core.step()
    assert outputs.outputs == []
    assert outputs.stats.num_running == 0


def test_the_prefix_cache_can_be_reset_and_switched_off(folder: Path) -> None:
    engine = Engine(folder)
    for number, hits in enumerate([0, 20, 0]):
        engine.add(f"r{number}", range(3, 24), max_tokens=2)
        assert not engine.core.has_unfinished_requests() or engine.step() is None
        assert not engine.core.reset_prefix_cache()
        engine.run()
        assert engine.news[f"r{number}"][0].num_cached_tokens == hits
        if number == 1:
            assert engine.core.reset_prefix_cache()
    engine = Engine(folder, cache={"enable_prefix_caching": False})
    for number in range(2):
        engine.add(f"r{number}", range(3, 24), max_tokens=2)
        engine.run()
    assert engine.news["r1"][0].num_cached_tokens == 0


# -- failing steps ------------------------------------------------------------------------------------------------


def fail_once(engine: Engine, error: BaseException, *, after: bool) -> None:
    """Let the next step raise `error`, before the ranks saw anything of it or after they wrote everything."""

    def fail(step: SchedulerOutput) -> None:
        engine.executor.before_step = engine.executor.after_step = lambda step: None
        raise error

    if after:
        engine.executor.after_step = fail
    else:
        engine.executor.before_step = fail


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ExecutorError("Rank 0 failed in execute_model: OSError: gone"),
            "Rank 0 failed in execute_model: OSError: gone",
        ),
        (ZeroDivisionError("by nothing"), "Step 2 failed: ZeroDivisionError: by nothing"),
    ],
)
def test_a_failing_step_ends_its_requests_and_nobody_else(
    folder: Path, error: Exception, message: str, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(folder, scheduler={"max_num_seqs": 2})
    prompt = list(range(3, 60))
    for name in ("a", "b", "waits"):
        engine.add(name, prompt, max_tokens=6)
    engine.step()
    fail_once(engine, error, after=after)
    engine.step()
    for name in ("a", "b"):
        assert engine.news[name][-1].finish_reason is FinishReason.ERROR
        assert engine.news[name][-1].error == message
    assert engine.core.stats().num_used_blocks == 0
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) is isinstance(error, ZeroDivisionError)
    engine.add("a", prompt, max_tokens=6)
    engine.run()
    assert engine.tokens("waits") == alone(prompt, 6)
    assert engine.news["waits"][0].num_cached_tokens <= 32, "only what the first step computed can be hit"
    assert engine.tokens("a")[-6:] == alone(prompt, 6)


def test_a_rank_that_answers_for_the_wrong_requests_fails_the_step(folder: Path) -> None:
    engine = Engine(folder)
    engine.add("a", [3, 4, 5])
    right = engine.executor.execute_model
    engine.executor.execute_model = lambda step: type(right(step))(sampled={"b": 1})
    engine.step()
    assert "sampled for other requests" in engine.news["a"][0].error


def test_an_interrupt_is_raised_and_leaves_a_clean_engine(folder: Path) -> None:
    engine = Engine(folder)
    engine.add("a", range(3, 20))
    fail_once(engine, KeyboardInterrupt(), after=True)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.core.has_unfinished_requests()
    engine.add("a", range(3, 20))
    engine.run()
    assert engine.tokens("a") == alone(range(3, 20), 8)


def test_an_executor_that_is_gone_ends_every_request(folder: Path) -> None:
    engine = Engine(folder, scheduler={"max_num_seqs": 1})
    for name in "abc":
        engine.add(name, range(3, 20))
    engine.core.shutdown()
    engine.core.shutdown()
    engine.run()
    assert all(engine.news[name][-1].finish_reason is FinishReason.ERROR for name in "abc")


@pytest.mark.slow
def test_a_real_rank_goes_on_after_a_failing_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights, real memory: a step that left garbage behind spoils nothing that is generated later."""
    monkeypatch.setenv("OCTAVO_ATTENTION_BACKEND", "torch_reference")
    stages: list[StageReport] = []
    core = EngineCore(
        EngineConfig(
            model=ModelSource(model=str(folder), load_format="dummy", dtype="float32"),
            cache=CacheConfig(block_size=BLOCK_SIZE, kv_memory_bytes=1 << 20),
            scheduler=SchedulerConfig(max_num_batched_tokens=32),
        ),
        on_stage=stages.append,
    )
    assert [stage.name for stage in stages if stage.rank is None][-1] == "build_scheduler"
    assert {"init_device", "load_model", "bind_kv_cache"} <= {stage.name for stage in stages if stage.rank == 0}

    def generate(name: str) -> EngineCoreOutput | list[int]:
        core.add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=[3 + 7 * place % 300 for place in range(60)],
                sampling=SamplingParams(temperature=0, max_tokens=6),
            )
        )
        tokens: list[int] = []
        while core.has_unfinished_requests():
            for output in core.step().outputs:
                tokens += output.new_token_ids
                if output.error is not None:
                    return output
        return tokens

    expected = generate("a")
    assert core.reset_prefix_cache()
    forward, calls = ModelRunner._forward, []

    def fail_in_the_second_step(self: ModelRunner, inputs: Any) -> Any:
        calls.append(inputs)
        hidden = forward(self, inputs)
        if len(calls) == 2:
            for group in self.groups:
                slots = group.metadata.slot_mapping
                for view in self.kv_caches.values():
                    view.key[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = float("nan")
            raise RuntimeError("planted")
        return hidden

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "_forward", fail_in_the_second_step)
        failed = generate("b")
    assert isinstance(failed, EngineCoreOutput)
    assert failed.error == "Rank 0 failed in execute_model: RuntimeError: planted"
    assert core.stats().num_used_blocks == 0
    assert generate("b") == expected
    assert core.stats().prefix_hit_tokens == 32, "what the first step wrote is as good as ever"
    core.shutdown()


def test_blocks_of_a_step_are_counted_while_it_runs(folder: Path) -> None:
    engine = Engine(folder)
    engine.add("one", range(3, 12), max_tokens=1)
    outputs = engine.core.step()
    assert outputs.outputs[0].finish_reason is FinishReason.LENGTH
    assert outputs.stats.num_used_blocks == 0
    assert outputs.num_step_blocks == 3 * len(engine.core.plan.configs[0].groups), "9 tokens in blocks of 4"
