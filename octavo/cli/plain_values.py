"""Values of flags that are read without pydantic, and refused in our own words.

Typer 0.29 reads every flag's value through pydantic, whose import takes 0.1 s: a tenth of what a small model needs from
its libraries to its first token. Texts, numbers and what has a parser of its own are read here, in the same way;
whatever else it may be is left to typer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperGroup

_READER = "_runtime_param"
"""Where a parameter of typer's keeps what reads its value, once that is made; absent before typer 0.29."""


def read_plainly(parameters: Iterable[Any]) -> None:
    """Let these parameters of a command read plain values themselves. Does nothing with a typer that has no need."""
    for parameter in parameters:
        if getattr(parameter, _READER, parameter) is None:
            setattr(parameter, _READER, _Reader())


_DIGITS = re.compile("[0-9]{1,18}")
_DECIMALS = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")


class PlainGroup(TyperGroup):
    """A group of commands, whose own flags are read plainly."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)


class _Reader:
    """Stands in for typer's reader of one parameter. Owns, never: nothing."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of a flag as the command gets it; `value` is what was written, or the default."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if get_origin(kind) is list and isinstance(value, list | tuple):
            found = [_plain(item, get_args(kind)[0], info) for item in value]
            if all(is_plain for is_plain, _ in found):
                return [item for _, item in found]
        else:
            is_plain, item = _plain(value, kind, info)
            if is_plain:
                return item
        setattr(param, _READER, None)
        try:
            return _finite(param.get_runtime_param().coerce(value, param=param, ctx=ctx), info)
        except typer.BadParameter as error:
            fault = _fault(value, kind, info)
            raise typer.BadParameter(fault or error.message, ctx=ctx, param=param) from None


def written(value: Any) -> str:
    """A flag's value as its user wrote it, or as Python writes it where a line of a terminal cannot show it."""
    text = value if isinstance(value, str) and value.strip() and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fault(value: Any, kind: Any, info: Any) -> str | None:
    """What is wrong with the value of a number's flag: what follows the flag's name. None where typer knows better."""
    if get_origin(kind) is list and isinstance(value, list | tuple):
        faults = (
            _fault(item, get_args(kind)[0], info) for item in value if not _plain(item, get_args(kind)[0], info)[0]
        )
        return next(faults, None)
    if kind not in (int, float) or info.parser is not None:
        return None
    words = "a whole number" if kind is int else "a number"
    if info.min is not None:
        words += f", at least {info.min}" if info.max is None else f", from {info.min} to {info.max}"
    return f"is {written(value)}. It must be {words}."


def _finite(value: Any, info: Any) -> Any:
    """`value`; one of a flag with bounds must be within some. Raises `typer.BadParameter`."""
    if isinstance(value, float) and info.min is not None and not math.isfinite(value):
        raise typer.BadParameter("is not finite.")
    return value


def _plain(value: Any, kind: Any, info: Any) -> tuple[bool, Any]:
    """Whether `value` is plain, and what it reads as."""
    if info.parser is not None:
        try:
            return True, info.parser(value)
        except (ValueError, typer.BadParameter):
            return False, None
    if info.min is not None or info.max is not None:
        return False, None
    if kind is str and type(value) is str:
        return True, value
    if kind is int and (type(value) is int or (type(value) is str and _DIGITS.fullmatch(value) is not None)):
        return True, int(value)
    if kind is float and (type(value) is float or (type(value) is str and _DECIMALS.fullmatch(value) is not None)):
        return True, float(value)
    return False, None
