"""When the wait for answers is over."""

from __future__ import annotations

import math

import pytest

from octavo.errors import ExecutorError
from octavo.executor.deadline import Deadline, RankFailed


def test_without_a_timeout_it_never_comes() -> None:
    deadline = Deadline(None)
    assert deadline.seconds_left() == math.inf
    deadline.check(0)


def test_a_late_rank_is_named() -> None:
    deadline = Deadline(0.0)
    assert deadline.seconds_left() == 0
    with pytest.raises(ExecutorError, match=r"Rank 3 did not answer within 0 s") as caught:
        deadline.check(3)
    assert caught.value.numbers == {"rank": 3}


def test_the_first_error_shortens_the_wait_and_is_what_is_told() -> None:
    deadline = Deadline(None)
    deadline.shorten(b"first", 0.0)
    deadline.shorten(b"second", 0.0)
    with pytest.raises(RankFailed) as caught:
        deadline.check(0)
    assert caught.value.frame == b"first"


def test_an_error_does_not_make_the_wait_longer() -> None:
    deadline = Deadline(1.0)
    deadline.shorten(b"first", 100.0)
    assert deadline.seconds_left() <= 1.0
