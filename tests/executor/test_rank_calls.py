"""Calls and answers, as bytes and back."""

from __future__ import annotations

import msgspec
import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.error_report import ErrorReport, report_of
from octavo.errors import ConfigError, InvariantError
from octavo.executor.rank_calls import (
    RankStart,
    decode_answer,
    decode_call,
    decode_last,
    decode_start,
    encode_call,
    encode_error,
    encode_result,
    encode_start,
    is_error,
)
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.messages import ModelRunnerOutput, NewRequestData, SchedulerOutput, StageReport, TokenLogprobs
from octavo.request import SamplingParams
from tests.executor.process_ranks import SPECS

STEP = SchedulerOutput(
    step=7,
    num_scheduled_tokens={"a": 3, "b": 1},
    new_requests=[
        NewRequestData(
            request_id="a",
            token_ids=[1, 2, 3],
            num_prompt_tokens=3,
            sampling=SamplingParams(temperature=0.5, stop=["x"], logit_bias={3: 1.5}),
            eos_token_ids=(2,),
            num_computed_tokens=0,
            block_ids=([1], [2, 0]),
        )
    ],
    finished_request_ids=["c"],
    block_copies=[(1, 2)],
)
OUTPUT = ModelRunnerOutput(
    sampled={"a": 5}, logprobs={"a": TokenLogprobs(token_ids=[5, 6], logprobs=[-0.5, -1.5], rank=1)}
)
REPORT = StageReport(name="load_model", seconds=1.5, result="done", rank=0, facts={"weight_bytes": 3})


def test_a_start_comes_through() -> None:
    start = RankStart(config=EngineConfig(model=ModelSource(model="demo")), global_rank=3, local_rank=1)
    assert decode_start(encode_start(start)) == start


def test_arguments_come_through_in_their_types() -> None:
    configs = list(plan_kv_cache([SPECS, SPECS], [1 << 20] * 2, PlanOptions(max_model_len=32)).configs)
    assert decode_call(encode_call("initialize_from_config", (configs,))) == ("initialize_from_config", (configs,))
    assert decode_call(encode_call("execute_model", (STEP,))) == ("execute_model", (STEP,))
    assert decode_call(encode_call("warm_up", ())) == ("warm_up", ())


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("get_kv_cache_specs", SPECS),
        ("get_shared_layers", {"layers.1": "layers.0"}),
        ("determine_available_memory", 1 << 40),
        ("execute_model", OUTPUT),
        ("stage_reports", [REPORT]),
        ("warm_up", None),
    ],
)
def test_results_come_through_in_their_types(method: str, result: object) -> None:
    frame = encode_result(result)
    assert decode_answer(method, frame) == result
    assert not is_error(frame)


def test_an_error_comes_instead_of_a_result() -> None:
    report = ErrorReport(kind="ConfigError", fact="It is wrong.", numbers={"n": 3})
    frame = encode_error(report)
    assert is_error(frame)
    assert decode_answer("warm_up", frame) == report


@pytest.mark.parametrize("method", ["__init__", "_made", "no_such", "__class__"])
def test_only_the_methods_of_a_rank_can_be_called(method: str) -> None:
    with pytest.raises(InvariantError, match="ranks do not answer to"):
        encode_call(method, ())
    forged = msgspec.msgpack.encode([method, []])
    with pytest.raises(InvariantError, match="ranks do not answer to"):
        decode_call(forged)


def test_arguments_of_another_type_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_call(encode_call("execute_model", ("a step",)))


def test_of_many_answers_the_last_counts_and_any_error() -> None:
    others = [encode_result(ModelRunnerOutput(sampled={})), encode_result(OUTPUT)]
    assert decode_last("execute_model", others) == OUTPUT
    failed = encode_error(report_of(ConfigError("A mistake.", remedy="Mend it."), doing="Rank 0 failed"))
    for place in range(3):
        frames = others[:]
        frames.insert(place, failed)
        with pytest.raises(ConfigError, match="A mistake"):
            decode_last("execute_model", frames)
