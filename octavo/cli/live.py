"""What happens while a run is under way: text on stdout as it comes, one live line of progress on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

PLAIN_SECONDS = 5.0
"""Between two lines of progress where stderr is no terminal."""

MAX_OPEN_LINES = 8
"""Lines of an unfinished paragraph that are redrawn; what is longer is settled at a space."""


class Screen:
    """The terminal, or what stands in its place.

    Owns: the text of the line that is not finished. Never: decides what is shown.

    Three cases: both streams are terminals (text and live line share one screen, so both are drawn together); only
    stderr is (the live line is drawn there, text goes to stdout as it is); stderr is none (a plain line now and then,
    until text comes: then that is progress enough, and both may go to one place).
    """

    def __init__(self, status: Callable[[], str]) -> None:
        self._status = status
        self._shared = sys.stdout.isatty() and sys.stderr.isatty()
        self._console = Console(stderr=not self._shared, highlight=False)
        self._open = ""
        self._has_text = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show progress while the body runs."""
        if not sys.stderr.isatty():
            with _plain_lines(self._tell):
                yield
            return
        live = Live(
            console=self._console,
            refresh_per_second=8,
            transient=True,
            get_renderable=self._render,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with live:
                yield
        finally:
            if self._open:
                self._settle(len(self._open))

    def write(self, text: str) -> None:
        """Add text to stdout."""
        self._has_text = self._has_text or bool(text)
        if not self._shared:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        self._open += text
        end = self._open.rfind("\n")
        limit = MAX_OPEN_LINES * self._console.width
        if end < 0 and len(self._open) > limit:
            end = self._open.rfind(" ", 0, limit)
        if end >= 0:
            self._settle(end)
            self._open = self._open[1:]

    def _tell(self) -> None:
        if not self._has_text:
            sys.stderr.write(f"{self._status()}\n")
            sys.stderr.flush()

    def _settle(self, num_characters: int) -> None:
        """Print that much of the open line for good, above the live line."""
        text, self._open = self._open[:num_characters], self._open[num_characters:]
        self._console.print(Text(text), soft_wrap=True)

    def _render(self) -> RenderableType:
        status = Text(self._status(), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(Text(self._open), status) if self._open else status


@contextlib.contextmanager
def _plain_lines(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` every `PLAIN_SECONDS` while the body runs."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(PLAIN_SECONDS):
            tell()

    teller = threading.Thread(target=repeat, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
