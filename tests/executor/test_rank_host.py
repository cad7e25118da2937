"""A rank behind frames: every call is answered, whatever goes wrong."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.error_report import ErrorReport
from octavo.executor.rank_calls import RankStart, decode_answer, encode_call
from octavo.executor.rank_host import RankHost, find_rank_class
from octavo.messages import Rendezvous

RANKS = "tests.executor.process_ranks"


def host(kind: str, number: int = 1) -> RankHost:
    start = RankStart(config=EngineConfig(model=ModelSource(model="none")), global_rank=number, local_rank=0)
    return RankHost(start, find_rank_class(f"{RANKS}:{kind}"))


def test_one_rank_answers_all_calls() -> None:
    served = host("Null")
    method, frame = served.answer(encode_call("init_worker", (Rendezvous(),)))
    assert (method, decode_answer(method, frame)) == ("init_worker", None)
    method, frame = served.answer(encode_call("determine_available_memory", ()))
    assert decode_answer(method, frame) == 1 << 20
    assert served._rank.calls == ["init_worker", "determine_available_memory"]


@pytest.mark.parametrize(
    ("kind", "frame", "says"),
    [
        ("Null", b"nonsense", "Rank 1 failed in a call: "),
        ("Unmakeable", encode_call("warm_up", ()), "Rank 1 failed in warm_up: RuntimeError: no rank today"),
        ("Refusing", encode_call("load_model", ()), "This rank cannot load"),
    ],
)
def test_errors_are_answers(kind: str, frame: bytes, says: str) -> None:
    _, answer = host(kind).answer(frame)
    report = decode_answer("warm_up", answer)
    assert isinstance(report, ErrorReport)
    assert says in report.fact


def test_a_class_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        find_rank_class(f"{RANKS}:NoSuch")
    with pytest.raises(ImportError):
        find_rank_class("no.such.module:Rank")
