"""Wrong usage, told as every other mistake is: in one sentence, with the fact and a remedy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises where a command line cannot be read; which library's it is depends on typer's version."""

WRONG_USAGE = 2


@contextlib.contextmanager
def placing(context: Any) -> Iterator[None]:
    """Wrong usage found inside, of which the library does not say where, is that of the command of `context`."""
    try:
        yield
    except UsageError as error:
        found: Any = error
        found.ctx = found.ctx or context
        raise


def tell_usage(error: Any) -> int:
    """Say on stderr what is wrong with a command line; the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: the message is its help
        error.show()
    else:
        sys.stderr.write(f"error: {_sentence(error)}\n")
    return WRONG_USAGE


def _sentence(error: Any) -> str:
    names = getattr(getattr(error, "param", None), "opts", None) or ()
    # Octavo's own words follow the name of the flag (octavo.cli.plain_values, octavo.cli.flags).
    if names and error.message.startswith(("is ", "has ")):
        return f"{_long(names)} {error.message}"
    words = " ".join(error.format_message().split())
    ended = words if words.endswith((".", "?")) else f"{words}."
    return f"{ended} See {error.ctx.command_path} -h." if error.ctx is not None else ended


def _long(names: list[str]) -> str:
    return next((name for name in names if name.startswith("--")), names[0])
