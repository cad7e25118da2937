"""Errors as plain values, and back."""

from __future__ import annotations

import msgspec
import pytest

from octavo import errors
from octavo.error_report import ErrorReport, error_from, report_of
from octavo.errors import CacheTooSmallError, ExecutorError, InvariantError, OctavoError, RequestError

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


def _report(error: BaseException) -> ErrorReport:
    """As the engine core reports."""
    return report_of(error, doing="The engine core failed", remedy="Its log has the whole trace.")


def test_what_happened_and_what_to_do_are_two_sentences() -> None:
    assert str(error_from(_report(ValueError("bad")))) == (
        "The engine core failed: ValueError: bad. Its log has the whole trace."
    )


def _travel(error: BaseException) -> OctavoError:
    return error_from(msgspec.msgpack.decode(msgspec.msgpack.encode(_report(error)), type=ErrorReport))


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OctavoError)]
)
def test_every_class_of_error_comes_back_as_it_is(kind: type[OctavoError]) -> None:
    came = _travel(kind("A fact.", remedy="A remedy.", needed_bytes=7))
    assert type(came) is kind
    assert (str(came), came.fact, came.remedy, came.numbers) == (
        "A fact. A remedy.", "A fact.", "A remedy.", {"needed_bytes": 7},
    )  # fmt: skip


def test_a_refusal_keeps_its_parameter() -> None:
    came = _travel(RequestError("top_p is 7.", parameter="top_p"))
    assert isinstance(came, RequestError)
    assert came.parameter == "top_p"


def test_numbers_that_msgpack_has_not_are_written_out() -> None:
    numbers = {"huge": 2**80, "sizes": (1, [2]), "by": {3: {4}}, "none": None, "share": 0.5}
    came = _travel(CacheTooSmallError("x", **numbers))
    assert came.numbers == {"huge": str(2**80), "sizes": [1, [2]], "by": {"3": "{4}"}, "none": None, "share": 0.5}


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), InvariantError("lost a block")])
def test_an_accident_is_told_as_one(error: Exception) -> None:
    came = _travel(error)
    assert type(came) is ExecutorError
    assert f"{type(error).__name__}: {error}" in str(came)


@pytest.mark.parametrize("kind", ["Nothing", "annotations", "InvariantError", "Any"])
def test_only_errors_of_octavo_are_made(kind: str) -> None:
    assert type(error_from(ErrorReport(kind=kind, fact="x"))) is OctavoError
