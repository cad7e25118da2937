"""The rank's side of an actor, without a cluster."""

from __future__ import annotations

import os

import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.executor.rank_calls import RankStart, decode_answer, encode_call, encode_start
from octavo.messages import Rendezvous

pytest.importorskip("ray", reason='needs Ray: pip install "octavo[ray]"')
from octavo.executor.ray_rank import RayRank


def test_it_answers_the_frames_of_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rank = RayRank("1")
    assert "OMP_NUM_THREADS" not in os.environ, "that was Ray's doing"
    start = RankStart(config=EngineConfig(model=ModelSource(model="none")), global_rank=3, local_rank=1)
    rank.begin(encode_start(start), "tests.executor.process_ranks:Telling")
    frame = rank.call(encode_call("init_worker", (Rendezvous(host="h", port=7, num_local_ranks=2),)))
    assert decode_answer("init_worker", frame) is None
    (report,) = decode_answer("stage_reports", rank.call(encode_call("stage_reports", ())))
    assert (report.rank, report.facts["local_rank"], report.facts["meeting"]) == (3, 1, "h:7")
    assert rank.beat() is None


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    RayRank("")
    assert os.environ["OMP_NUM_THREADS"] == "1"
