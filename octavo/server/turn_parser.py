"""A model's turn as it comes: reasoning, content and tool calls told apart, whatever pieces the text comes in."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

from octavo.server.tool_formats import ToolCall, ToolFormat


class ReasoningMarks(NamedTuple):
    """What stands around reasoning."""

    begin: str
    end: str


REASONING_MARKS: dict[str, ReasoningMarks] = {
    "think": ReasoningMarks("<think>", "</think>"),
    "magistral": ReasoningMarks("[THINK]", "[/THINK]"),
}


def find_reasoning_marks(chat_template: str) -> str | None:
    """The name of the marks that a model's chat template knows; None where it knows none of them."""
    return next((name for name, marks in REASONING_MARKS.items() if marks.end in chat_template), None)


class TurnPiece(NamedTuple):
    """What is new of a turn."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    def then(self, other: TurnPiece) -> TurnPiece:
        """Both, one after the other."""
        return TurnPiece(self.reasoning + other.reasoning, self.content + other.content, self.calls + other.calls)


class TurnParser:
    """Reads one turn.

    Owns: what is read and not yet told, which is at most a mark, blanks before one, or an unfinished call. Blanks
    around reasoning and calls are nobody's. Never: drops other text; what is no valid call is content.

    Parameters:
        tools: how calls are written; None where there are none to be found.
        reasoning: what stands around reasoning; None where it stays content.
        has_begun_reasoning: whether the prompt ends within reasoning.
    """

    def __init__(
        self, *, tools: ToolFormat | None, reasoning: ReasoningMarks | None, has_begun_reasoning: bool = False
    ) -> None:
        self._tools = tools
        self._reasoning = reasoning
        self._held = ""
        self._reasons = reasoning is not None and has_begun_reasoning
        self._may_reason = reasoning is not None and not has_begun_reasoning
        self._has_content = False
        self._drops = string.whitespace if self._reasons else ""
        """Characters that are dropped when they come next."""

    def feed(self, text: str) -> TurnPiece:
        """What `text` adds for certain."""
        return self._read(text, ended=False)

    def end(self) -> TurnPiece:
        """What is left when the turn has ended."""
        return self._read("", ended=True)

    def _read(self, text: str, *, ended: bool) -> TurnPiece:
        self._held += text
        found = TurnPiece()
        while True:
            self._held = self._held.lstrip(self._drops) if self._drops else self._held
            step = self._step(ended=ended) if self._held else None
            if step is None:
                return found
            found = found.then(step)

    def _step(self, *, ended: bool) -> TurnPiece | None:
        """What the held text begins with; None where more is needed."""
        if self._reasoning is not None and self._may_reason:
            return self._begin(self._reasoning, ended=ended)
        if self._reasoning is not None and self._reasons:
            return self._reason(self._reasoning, ended=ended)
        return self._tell(len(self._held)) if self._tools is None else self._read_content(self._tools, ended=ended)

    def _read_content(self, tools: ToolFormat, *, ended: bool) -> TurnPiece | None:
        if not self._has_content and self._held.lstrip().startswith(tools.first_marks):
            return self._section(tools, len(self._held) - len(self._held.lstrip()), ended=ended)
        place, mark = _first(self._held, tools.marks)
        if mark is None:
            return self._tell(len(self._held) - (0 if ended else _num_open(self._held, tools.marks)))
        if before := self._held[:place].rstrip():
            return self._tell(len(before))
        return self._section(tools, place, ended=ended)

    def _begin(self, reasoning: ReasoningMarks, *, ended: bool) -> TurnPiece | None:
        """Whether the turn begins with reasoning."""
        begin, start = reasoning.begin, self._held.lstrip()
        if begin.startswith(start[: len(begin)]) and len(start) < len(begin) and not ended:
            return None
        self._may_reason = False
        if start.startswith(begin):
            self._held, self._reasons, self._drops = start[len(begin) :], True, string.whitespace
        return TurnPiece()

    def _reason(self, reasoning: ReasoningMarks, *, ended: bool) -> TurnPiece | None:
        end = reasoning.end
        place, mark = _first(self._held, (end,))
        if mark is not None:
            told = self._held[:place].rstrip()
            self._held, self._reasons, self._drops = self._held[place + len(end) :], False, string.whitespace
            return TurnPiece(reasoning=told)
        kept = 0 if ended else _num_open(self._held, (end,))
        told, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        self._drops = "" if told else self._drops
        return TurnPiece(reasoning=told.rstrip() if ended else told) if told else None

    def _section(self, tools: ToolFormat, place: int, *, ended: bool) -> TurnPiece | None:
        """The section that begins there, behind blanks alone."""
        section = tools.read(self._held[place:], ended=ended)
        if section is None:
            return None
        if not section.calls:
            return self._tell(place + section.num_chars)
        self._held, self._drops = self._held[place + section.num_chars :], tools.between
        return TurnPiece(calls=tuple(section.calls))

    def _tell(self, num_chars: int) -> TurnPiece | None:
        told, self._held = self._held[:num_chars], self._held[num_chars:]
        if not told:
            return None
        self._has_content, self._drops = True, ""
        return TurnPiece(content=told)


def _first(text: str, marks: Sequence[str]) -> tuple[int, str | None]:
    """Where the first mark is, and which; (0, None) where there is none."""
    return min(((place, mark) for mark in marks if (place := text.find(mark)) >= 0), default=(0, None))


def _num_open(text: str, marks: Sequence[str]) -> int:
    """Characters at the end that may be the beginning of a mark, with the blanks before them."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            break
    else:
        size = 0
    rest = text[: len(text) - size]
    return size + len(rest) - len(rest.rstrip())
