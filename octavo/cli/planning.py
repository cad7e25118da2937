"""What `octavo plan` does with its flags."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from octavo.cli.comparison_view import comparison_document, comparison_text, explanation_text
from octavo.cli.forecast_view import forecast_text
from octavo.cli.outcome import USER_ERROR
from octavo.cli.plan_check import check, check_document, check_text, compare_with
from octavo.config import read_api_keys
from octavo.errors import ConfigError
from octavo.planning.comparison import compare
from octavo.planning.document import document
from octavo.planning.explanation import explain
from octavo.planning.forecast import find_subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.library import PlanKeywords, inquiry_from
from octavo.planning.picture import check_path, write_picture
from octavo.planning.remedies import find_remedies

DOES_NOT_FIT = 2
"""Exit code."""


def run(given: Mapping[str, Any]) -> None:
    """Plan, and print it. Raises what `forecast` raises, and `typer.Exit` with 2 where a request does not fit."""
    if given["plot"] is not None:
        check_path(given["plot"])
    if given["compare"]:
        fits = _compare(given)
    else:
        running = _running_server(given)
        if running is not None:
            given = given_by(running, given)
        subject = find_subject(model_name(given), given["revision"])
        asked = forecast(subject, inquiry_of(given))
        remedies = find_remedies(subject, asked)
        answer = forecast_text(asked, remedies)
        steps = explain(asked) if given["explain"] else ()
        found = None
        if running is not None:
            found = compare_with(asked, running.found(), None)
        elif given["check"]:
            found = check(asked, model_name(given), has_weights=bool(subject.files.weight_paths))
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


def _running_server(given: Mapping[str, Any]) -> Any:
    """The `RunningServer` that was named, asked for its cache. Raises `ConfigError` as `ask_server`."""
    if given["server"] is None:
        if given["api_key"] is not None:
            raise ConfigError("--api-key is a server's, and --server is not given.", remedy="Give both, or neither.")
        return None
    if not given["check"]:
        raise ConfigError("--server names what to check, and --check is not given.", remedy="Give both, or neither.")
    key = given["api_key"] or next(iter(read_api_keys()), None)
    return importlib.import_module("octavo.cli.plan_server").ask_server(given["server"], key)


def given_by(running: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, with the server's settings in place of those that make a plan, and its model where none is named."""
    plain = dict.fromkeys(PlanKeywords.__annotations__)
    settings = {name: value for name, value in running.settings.items() if name in plain}
    named = given["model"] or given["model_option"]
    return {
        **given,
        **plain,
        "lengths": given["lengths"],
        **settings,
        "model": named or running.model,
        "model_option": None,
        "revision": given["revision"] if named else running.revision,
    }


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
    if "" in (first, second):
        raise ConfigError("The model's name is empty.", remedy="Name one, or none for the demo model.")
    if first is not None and second is not None and first != second:
        raise ConfigError(f"Two models are named: {first} and {second}.", remedy="Name one.")
    return str(first or second or "demo")


def inquiry_of(given: Mapping[str, Any]) -> Inquiry:
    """The inquiry that the flags describe."""
    return inquiry_from(keywords_of(given))


def keywords_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that are keywords of `octavo.plan_kv_cache`, and were given or have a default."""
    return {name: given[name] for name in PlanKeywords.__annotations__ if given.get(name) is not None}
