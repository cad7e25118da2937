"""Errors that cross a process: an `OctavoError` keeps its class, fact, remedy and numbers; any other becomes one.

No pickle: a report is plain values, and only classes of `octavo.errors` are made of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo import errors
from octavo.errors import ExecutorError, OctavoError, RequestError


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way to another process."""

    kind: str
    """The class, by the name it has in `octavo.errors`."""
    fact: str
    remedy: str = ""
    parameter: str | None = None
    numbers: dict[str, Any] = {}


def report_of(error: BaseException, *, doing: str, remedy: str = "") -> ErrorReport:
    """`error` as plain values. One that Octavo did not raise on purpose is reported as an `ExecutorError`, whose
    message begins with `doing`, e.g. `Rank 1 failed in warm_up`, and ends with `remedy`."""
    if not isinstance(error, OctavoError):
        fact = f"{doing}: {type(error).__name__}: {error}"
        fact = f"{fact.rstrip('.')}." if remedy else fact
        return ErrorReport(kind=ExecutorError.__name__, fact=fact, remedy=remedy)
    return ErrorReport(
        kind=type(error).__name__,
        fact=error.fact,
        remedy=error.remedy,
        parameter=error.parameter if isinstance(error, RequestError) else None,
        numbers={name: _plain(value) for name, value in error.numbers.items()},
    )


def error_from(report: ErrorReport) -> OctavoError:
    """The error that `report` speaks of; of a class that is not known here, an `OctavoError`."""
    kind = getattr(errors, report.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, OctavoError)):
        kind = OctavoError
    if issubclass(kind, RequestError):
        return kind(report.fact, remedy=report.remedy, parameter=report.parameter, **report.numbers)
    return kind(report.fact, remedy=report.remedy, **report.numbers)


def _plain(value: Any) -> Any:
    """A value that msgpack has: what it has not is written as text."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
