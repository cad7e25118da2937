"""How a command ends: exceptions become one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
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
    """Ends the command for what a user can mend, for Ctrl-C, for a reader of stdout that went away, and for a system
    that refuses to read, write or give memory."""
    try:
        _require_streams()
        yield
        sys.stdout.flush()
    except OctavoError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has seen enough.
        _drop_output()
        raise typer.Exit from None
    except OSError as error:
        _drop_output()
        where = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"error: The system refuses: {error.strerror or error}{where}.\n")
        raise typer.Exit(USER_ERROR) from None
    except MemoryError:
        sys.stderr.write("error: The system has no more memory for this process.\n")
        raise typer.Exit(USER_ERROR) from None


def _require_streams() -> None:
    """Results are UTF-8 whatever the terminal speaks. Python has a stream that was closed as None."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stdout is None:
        raise OctavoError("Standard output is closed.", remedy="Let it go to a file or a pipe.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def _drop_output() -> None:
    """Python flushes stdout once more at exit: give it something to flush into."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
