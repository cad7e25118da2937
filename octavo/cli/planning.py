"""What `octavo plan` does with its flags."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from octavo.cli.comparison_view import comparison_document, comparison_text, explanation_text
from octavo.cli.forecast_view import forecast_text
from octavo.cli.outcome import USER_ERROR
from octavo.cli.plan_check import check, check_document, check_text
from octavo.errors import ConfigError
from octavo.planning.comparison import compare
from octavo.planning.document import document
from octavo.planning.explanation import explain
from octavo.planning.forecast import find_subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.library import PlanKeywords, inquiry_from
from octavo.planning.picture import write_picture
from octavo.planning.remedies import find_remedies

DOES_NOT_FIT = 2
"""Exit code."""


def run(given: Mapping[str, Any]) -> None:
    """Plan, and print it. Raises what `forecast` raises, and `typer.Exit` with 2 where a request does not fit."""
    if given["compare"]:
        fits = _compare(given)
    else:
        subject = find_subject(model_name(given), given["revision"])
        asked = forecast(subject, inquiry_of(given))
        remedies = find_remedies(subject, asked)
        answer = forecast_text(asked, remedies)
        steps = explain(asked) if given["explain"] else ()
        found = (
            check(asked, model_name(given), has_weights=bool(subject.files.weight_paths)) if given["check"] else None
        )
        if given["json"]:
            made = document(asked, remedies)
            made |= {"explanation": [step._asdict() for step in steps]} if steps else {}
            _print_json(made | ({"check": check_document(found)} if found is not None else {}))
        else:
            more = [explanation_text(steps)] * bool(steps) + ([check_text(found)] if found is not None else [])
            sys.stdout.write("\n".join([answer, *more]))
        if found is not None and not found.agrees:
            raise typer.Exit(USER_ERROR)
        if given["plot"] is not None:
            write_picture(asked, given["plot"], answer)
        fits = asked.fits
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _compare(given: Mapping[str, Any]) -> bool:
    """Print the comparison; whether any of its plans fits."""
    for flag in ("plot", "explain", "check"):
        if given[flag]:
            raise ConfigError(f"--{flag} shows one plan, and --compare several.", remedy="Give one of them.")
    rows = compare(given["compare"], model_name(given), given["revision"], keywords_of(given))
    if given["json"]:
        _print_json(comparison_document(rows))
    else:
        sys.stdout.write(comparison_text(rows))
    return any(row.forecast is not None and row.forecast.fits for row in rows)


def _print_json(made: Mapping[str, Any]) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(made)).decode() + "\n")


def model_name(given: Mapping[str, Any]) -> str:
    """The model that was named, in one way or the other; the demo model where none was."""
    first, second = given["model"], given["model_option"]
    if first is not None and second is not None and first != second:
        raise ConfigError(f"Two models are named: {first} and {second}.", remedy="Name one.")
    return str(first or second or "demo")


def inquiry_of(given: Mapping[str, Any]) -> Inquiry:
    """The inquiry that the flags describe."""
    return inquiry_from(keywords_of(given))


def keywords_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that are keywords of `octavo.plan_kv_cache`, and were given or have a default."""
    return {name: given[name] for name in PlanKeywords.__annotations__ if given.get(name) is not None}
