"""What `octavo plan` does with its flags."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from octavo.cli.forecast_view import forecast_text
from octavo.errors import ConfigError
from octavo.planning.document import document
from octavo.planning.forecast import find_subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.library import PlanKeywords, inquiry_from
from octavo.planning.remedies import find_remedies

DOES_NOT_FIT = 2
"""Exit code."""


def run(given: Mapping[str, Any]) -> None:
    """Plan, and print it. Raises what `forecast` raises, and `typer.Exit` with 2 where a request does not fit."""
    subject = find_subject(model_name(given), given["revision"])
    asked = forecast(subject, inquiry_of(given))
    remedies = find_remedies(subject, asked)
    if given["json"]:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document(asked, remedies))).decode() + "\n")
    else:
        sys.stdout.write(forecast_text(asked, remedies))
    if not asked.fits:
        raise typer.Exit(DOES_NOT_FIT)


def model_name(given: Mapping[str, Any]) -> str:
    """The model that was named, in one way or the other; the demo model where none was."""
    first, second = given["model"], given["model_option"]
    if first is not None and second is not None and first != second:
        raise ConfigError(f"Two models are named: {first} and {second}.", remedy="Name one.")
    return str(first or second or "demo")


def inquiry_of(given: Mapping[str, Any]) -> Inquiry:
    """The inquiry that the flags describe."""
    return inquiry_from({name: given[name] for name in PlanKeywords.__annotations__ if name in given})
