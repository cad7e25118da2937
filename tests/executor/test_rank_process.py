"""What runs in a rank's process, run in this one."""

from __future__ import annotations

import socket
import threading

from octavo.error_report import ErrorReport
from octavo.executor.frames import FrameSocket, framed
from octavo.executor.rank_calls import RankStart, decode_answer, encode_call, encode_start
from octavo.executor.rank_process import ORPHANED, serve
from tests.executor.process_ranks import Null, Unmakeable
from tests.executor.test_multiproc import config


def conversation(kind: type, methods: list[str]) -> tuple[list[object], int]:
    """The answers to calls of `methods`, and the exit code after the connection was closed."""
    near, far = socket.socketpair()
    codes: list[int] = []
    with near, far:
        thread = threading.Thread(target=lambda: codes.append(serve(FrameSocket(far), kind)))
        thread.start()
        calls = FrameSocket(near)
        calls.send(framed(encode_start(RankStart(config=config(1), global_rank=0, local_rank=0))))
        answers = []
        for method in methods:
            calls.send(framed(encode_call(method, ())))
            answers.append(decode_answer(method, calls.receive()))
        near.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    return answers, codes[0]


def test_calls_are_answered_until_shutdown_is_one() -> None:
    assert conversation(Null, ["init_device", "determine_available_memory", "shutdown"]) == ([None, 1 << 20, None], 0)


def test_a_connection_that_closes_ends_it() -> None:
    assert conversation(Null, ["init_device"]) == ([None], ORPHANED)


def test_a_rank_that_cannot_be_made_answers_so() -> None:
    [answer], _ = conversation(Unmakeable, ["init_device"])
    assert isinstance(answer, ErrorReport)
    assert answer.fact == "Rank 0 failed in init_device: RuntimeError: no rank today"


def test_arguments_that_do_not_fit_are_an_answer_not_an_end() -> None:
    answers, _ = conversation(Null, ["initialize_from_config", "determine_available_memory"])
    assert isinstance(answers[0], ErrorReport)
    assert answers[1] == 1 << 20
