"""Everything that crosses a process survives msgpack as it is."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

import octavo.messages as messages
from octavo.config import EngineConfig, ModelSource
from octavo.messages import (
    AbortRequests,
    AddRequests,
    AskMemory,
    AskState,
    CachedRequests,
    CoreFailed,
    CoreReady,
    CoreState,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    ErrorReport,
    FromCore,
    MemoryReport,
    MemoryTold,
    ModelRunnerOutput,
    NewRequestData,
    PrefixCacheReset,
    RequestRefused,
    RequestState,
    ResetPrefixCache,
    SchedulerOutput,
    SchedulerStats,
    StageEnded,
    StageReport,
    StartCore,
    StateTold,
    StopCore,
    ToCore,
    TokenLogprobs,
)
from octavo.request import FinishReason, SamplingParams
from tests.engine.fake_core_process import FAKE_MODEL
from tests.engine.fake_plan import FAKE_PLAN

_LOGPROBS = TokenLogprobs(token_ids=[4, 9], logprobs=[-0.5, -1.5], rank=1)
_STEP = SchedulerOutput(
    step=3,
    num_scheduled_tokens={"b": 1, "a": 5},
    new_requests=[
        NewRequestData(
            request_id="a",
            token_ids=[1, 2, 3, 4, 5],
            num_prompt_tokens=5,
            sampling=SamplingParams(stop=("x",)),
            eos_token_ids=(1,),
            num_computed_tokens=0,
            block_ids=([1, 2], [0, 3]),
        )
    ],
    cached_requests=CachedRequests(request_ids=["b"], num_computed_tokens=[7], new_block_ids={"b": ([], [4])}),
    finished_request_ids=["c"],
)
_SAMPLES: list[Any] = [
    EngineCoreRequest(request_id="a", prompt_token_ids=[1], sampling=SamplingParams(), cache_salt="s"),
    _STEP,
    ModelRunnerOutput(sampled={"a": 4}, logprobs={"a": _LOGPROBS}, prompt_logprobs={"a": [_LOGPROBS]}),
    EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                request_id="a", new_token_ids=[4], finish_reason=FinishReason.STOP, stop_reason=4, logprobs=(_LOGPROBS,)
            ),
            EngineCoreOutput(request_id="b", new_token_ids=[], finish_reason=FinishReason.ERROR, error="too long"),
        ],
        stats=SchedulerStats(
            num_running=1,
            num_waiting=0,
            num_blocks=9,
            num_free_blocks=5,
            num_cached_blocks=1,
            num_used_blocks=2,
            num_preemptions=0,
            prefix_query_tokens=0,
            prefix_hit_tokens=0,
        ),
        num_prompt_tokens=5,
    ),
    StageReport(
        name="load_model", seconds=0.5, result="18 layers", rank=0, facts={"num_threads": 2, "dtype": "float32"}
    ),
]

_STATE = CoreState(
    stats=_SAMPLES[3].stats,
    num_steps=7,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    running=[],
    waiting=[
        RequestState(
            request_id="a",
            num_prompt_tokens=5,
            num_output_tokens=2,
            num_computed_tokens=0,
            num_preemptions=1,
            num_blocks=0,
            num_wanted_blocks=2,
        )
    ],
)

_TO_CORE: list[ToCore] = [
    StartCore(config=EngineConfig(model=ModelSource(model="demo"))),
    AddRequests(requests=[_SAMPLES[0]]),
    AbortRequests(request_ids=["a"]),
    ResetPrefixCache(number=3),
    AskMemory(number=4),
    AskState(number=5),
    StopCore(),
]
_FROM_CORE: list[FromCore] = [
    StageEnded(report=StageReport(name="x", seconds=0.5, result="y")),
    CoreReady(plan=FAKE_PLAN, model_config=FAKE_MODEL, max_model_len=7),
    CoreFailed(error=ErrorReport(kind="PlanError", fact="x", numbers={"needed_bytes": 2**40})),
    RequestRefused(request_id="a", error=ErrorReport(kind="RequestError", fact="x", parameter="n")),
    PrefixCacheReset(number=3, is_done=True),
    MemoryTold(
        number=4,
        reports=[
            MemoryReport(num_blocks=9, num_views=2, num_storages=1, storage_bytes=2**33, resident_bytes=0, rank=1)
        ],
    ),
    StateTold(number=5, state=_STATE),
    _SAMPLES[3],
]


@pytest.mark.parametrize(("union", "messages"), [(ToCore, _TO_CORE), (FromCore, _FROM_CORE)], ids=["to", "from"])
def test_what_comes_from_a_process_is_told_apart_by_its_tag(union: Any, messages: list[Any]) -> None:
    assert {type(message) for message in messages} == set(typing.get_args(union))
    for message in messages:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


@pytest.mark.parametrize("message", _SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_msgpack(message: msgspec.Struct) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_a_step_counts_its_tokens_and_keeps_the_order_of_the_batch() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(_STEP), type=SchedulerOutput)
    assert again.num_tokens == 6
    assert list(again.num_scheduled_tokens) == ["b", "a"]


def test_every_message_is_frozen() -> None:
    structs = [
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == messages.__name__
    ]
    assert len(structs) >= 10
    assert all(kind.__struct_config__.frozen for kind in structs)


def test_a_state_is_stuck_where_somebody_waits_nobody_runs_and_blocks_are_free() -> None:
    stats = msgspec.structs.replace(_STATE.stats, num_running=0, num_waiting=1)
    for change, expected in (
        ({}, True),
        ({"num_running": 1}, False),
        ({"num_waiting": 0}, False),
        ({"num_free_blocks": 0}, True),
        ({"num_free_blocks": 0, "num_cached_blocks": 0}, False),
    ):
        changed = msgspec.structs.replace(_STATE, stats=msgspec.structs.replace(stats, **change))
        assert changed.is_stuck is expected, change
