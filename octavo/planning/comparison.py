"""Several plans side by side: the same question with other values of one setting, or of several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.planning.forecast import Forecast, find_subject, forecast
from octavo.planning.library import inquiry_from
from octavo.planning.remedies import longest_length

MAX_ROWS = 200

_SUFFIXES = {"k": 1000, "m": 1000**2, "K": 1024, "M": 1024**2}


def _count(text: str) -> int:
    digits, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else (text, 1)
    if not digits.isdigit():
        raise ConfigError(f"{text!r} is no whole number.", remedy="Write 4096, 4k (4000) or 4K (4096).")
    return int(digits) * factor


def _length(text: str) -> int:
    return -1 if text == "auto" else _count(text)


SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "tp": ("tensor_parallel_size", _count),
    "pp": ("pipeline_parallel_size", _count),
    "kv-dtype": ("kv_cache_dtype", str),
    "block-size": ("block_size", _count),
    "max-len": ("max_model_len", _length),
    "step-tokens": ("max_num_batched_tokens", _count),
    "gpu": ("gpu", str),
    "memory": ("memory", str),
    "kv-memory": ("kv_memory", str),
    "model": ("model", str),
}
"""What can be compared -> the keyword that it sets, and how a value is read."""

_OTHER_NAMES = {"dtype": "kv-dtype", "tensor-parallel-size": "tp", "pipeline-parallel-size": "pp", "length": "max-len"}
_SAME_THING = {"gpu": ("memory", "kv_memory"), "memory": ("gpu", "kv_memory"), "kv_memory": ("gpu", "memory")}
"""A keyword that says what there is -> those that it replaces."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of the comparison."""

    values: dict[str, str]
    """Setting -> its value, as it was written."""
    forecast: Forecast | None
    refusal: str = ""
    """Why there is no forecast."""
    longest: int = 0
    """The longest request that fits, up to the length that was asked for."""


def compare(wanted: Sequence[str], model: str, revision: str | None, keywords: Mapping[str, Any]) -> tuple[Row, ...]:
    """A row for each combination of the values in `wanted`, such as `tp=1,2,4`.

    Raises `ConfigError` for a setting that cannot be compared, and for a value that cannot be read; what one row cannot
    be planned with is told in it.
    """
    axes: dict[str, list[str]] = {}
    for name, listed in map(_axis, wanted):
        for other in axes:
            keyword = SETTINGS[other][0]
            if name == other or SETTINGS[name][0] in _SAME_THING.get(keyword, ()):
                raise ConfigError(
                    f"--compare is given {other} and {name}, which set one thing.",
                    remedy=f"Write one of them, with all its values: {other}=V,V.",
                )
        axes[name] = listed
    names = list(axes)
    combinations = list(itertools.product(*axes.values()))
    if len(combinations) > MAX_ROWS:
        raise ConfigError(f"--compare asks for {len(combinations)} plans.", remedy=f"Ask for at most {MAX_ROWS}.")
    return tuple(_row(dict(zip(names, values, strict=True)), model, revision, keywords) for values in combinations)


def _axis(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    name = _OTHER_NAMES.get(name, name)
    listed = [value for value in values.split(",") if value]
    if name not in SETTINGS or not listed:
        raise ConfigError(f"--compare is {text!r:.60}.", remedy=f"Write SETTING=V,V with one of {', '.join(SETTINGS)}.")
    for value in listed:
        SETTINGS[name][1](value)
    return name, listed


def _row(values: dict[str, str], model: str, revision: str | None, keywords: Mapping[str, Any]) -> Row:
    given = dict(keywords)
    try:
        for name, text in values.items():
            keyword, read = SETTINGS[name]
            given[keyword] = read(text)
            for other in _SAME_THING.get(keyword, ()):
                given.pop(other, None)
        asked = forecast(find_subject(given.pop("model", model), revision), inquiry_from(given))
    except OctavoError as error:
        return Row(values=values, forecast=None, refusal=str(error))
    longest = asked.plan.figures.max_model_len if asked.fits else longest_length(asked)
    return Row(values=values, forecast=asked, longest=longest)
