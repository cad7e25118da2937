"""How a command ends: exceptions become one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from octavo.errors import OctavoError

USER_ERROR = 1
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Ends the command for what a user can mend, for Ctrl-C, and for a reader of stdout that went away."""
    try:
        yield
        sys.stdout.flush()
    except OctavoError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has seen enough. Python flushes stdout once more at exit: give it something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
