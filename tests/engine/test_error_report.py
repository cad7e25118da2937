"""Errors keep what callers need of them on their way between processes."""

from __future__ import annotations

import msgspec
import pytest

from octavo import errors
from octavo.engine.error_report import error_from, report_of
from octavo.errors import CacheTooSmallError, ExecutorError, InvariantError, OctavoError, RequestError
from octavo.messages import ErrorReport


def _travel(error: BaseException) -> OctavoError:
    return error_from(msgspec.msgpack.decode(msgspec.msgpack.encode(report_of(error)), type=ErrorReport))


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
