"""Help that cuts no name, however narrow the terminal is, and that wrong usage points to."""

from __future__ import annotations

import shutil
from typing import Any

from typer.core import TyperCommand

from octavo.cli.plain_values import read_plainly
from octavo.cli.usage import placing

PANEL_COLUMNS = 150
"""Terminals narrower than this have no room for typer's panels: names of options would lose their ends there."""


class TextHelp(TyperCommand):
    """A command whose help on a narrow terminal is plain text: options under the titles of their panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        read_plainly(self.get_params(ctx))
        with placing(ctx):
            return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if shutil.get_terminal_size().columns >= PANEL_COLUMNS:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        self.format_epilog(ctx, formatter)
