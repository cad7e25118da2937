"""The command line: one file a command, loaded when it is called.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 an error the user can mend, 2 wrong usage (and a
plan that does not fit), 130 interrupted. Whoever closes the pipe that reads stdout has seen enough: that is no error.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, NoReturn

import typer

from octavo import __version__
from octavo.cli.plain_values import PlainGroup
from octavo.cli.process_end import end_process
from octavo.cli.usage import UsageError, tell_usage

COMMANDS = {
    "plan": "octavo.cli.plan",
    "generate": "octavo.cli.generate",
    "chat": "octavo.cli.chat",
    "serve": "octavo.cli.serve",
    "bench": "octavo.cli.bench",
    "eval": "octavo.cli.eval",
}
"""Command, or group of commands -> the module whose `app` it is."""


class _Commands(PlainGroup):
    """Loads a command's module when the command is called, so that each pays only for itself."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name  # a group does not know its own
        return command


app = typer.Typer(
    cls=_Commands,
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if wanted:
        sys.stdout.write(f"octavo {__version__}\n")
        raise typer.Exit


@app.callback()
def octavo(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Octavo runs language models, and shows what their KV cache does."""


def main() -> None:
    """Run the command line and exit."""
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        code = tell_usage(error)
    except KeyboardInterrupt:
        # Before a command has begun: commands end by octavo.cli.outcome.
        code = 130
    sys.exit(code or 0)


def run() -> NoReturn:
    """Run the command line and end the process, which is to have done nothing else."""
    try:
        main()
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise
        end_process(ended.code or 0)
    end_process(0)
