"""Errors as plain values, and back."""

from __future__ import annotations

import msgspec
import pytest

from octavo import errors
from octavo.error_report import ErrorReport, error_from, report_of
from octavo.errors import CacheTooSmallError, ExecutorError, OctavoError, RequestError

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OctavoError)]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_keeps_class_words_and_numbers(kind: type[OctavoError]) -> None:
    error = kind("It is 3.", remedy="Make it 2.", number=3, shape=(1, 2))
    report = msgspec.msgpack.decode(msgspec.msgpack.encode(report_of(error, doing="x")), type=ErrorReport)
    back = error_from(report)
    assert type(back) is kind
    assert (str(back), back.fact, back.remedy) == (str(error), "It is 3.", "Make it 2.")
    assert back.numbers == {"number": 3, "shape": [1, 2]}


def test_a_refused_request_keeps_the_parameter() -> None:
    report = report_of(RequestError("Too long.", parameter="prompt"), doing="x")
    back = error_from(report)
    assert isinstance(back, RequestError)
    assert back.parameter == "prompt"


def test_an_error_that_nobody_meant() -> None:
    back = error_from(report_of(ValueError("bad"), doing="Rank 2 failed in warm_up"))
    assert type(back) is ExecutorError
    assert back.fact == "Rank 2 failed in warm_up: ValueError: bad"


def test_numbers_that_msgpack_has_not_become_text() -> None:
    report = report_of(CacheTooSmallError("x", huge=1 << 70, kind={1, 2}.__class__), doing="x")
    msgspec.msgpack.encode(report)
    assert report.numbers["huge"] == str(1 << 70)


@pytest.mark.parametrize("kind", ["SystemExit", "OctavoError", "InvariantError", "annotations", "no such"])
def test_a_class_that_is_none_of_ours_is_an_octavo_error(kind: str) -> None:
    assert type(error_from(ErrorReport(kind=kind, fact="x"))) is OctavoError
