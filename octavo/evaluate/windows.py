"""How windows lie over a text whose perplexity is asked; what is said of it in `octavo/evaluate/perplexity.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from octavo.errors import RequestError

DEFAULT_WINDOW = 2048
"""Tokens of a window where nothing else is asked and the engine takes as many."""


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """How windows lie over a text. Build with `lay_windows`, which checks the numbers."""

    num_tokens: int
    marks: tuple[int, ...]
    window: int
    stride: int

    @property
    def unscored(self) -> range:
        """Places of ids with nothing before them in any window: without marks the text's first one, and that of every
        window where none overlaps another."""
        if self.marks:
            return range(0)
        return range(0, self.num_tokens if self.stride == self.window else 1, self.stride)

    @property
    def num_scored(self) -> int:
        """Ids that are scored."""
        return self.num_tokens - len(self.unscored)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """(first id, first id that is scored, end) of each window that scores any, as places in the text."""
        room = self.window - len(self.marks)
        begin, scored = 0, 0
        while scored < self.num_tokens:
            end = min(begin + room, self.num_tokens)
            first = scored + 1 if scored in self.unscored else scored
            if first < end:
                yield begin, first, end
            begin, scored = begin + self.stride, end


def lay_windows(
    num_tokens: int, marks: Sequence[int], *, longest: int, window: int | None = None, stride: int | None = None
) -> Windows:
    """Windows over a text of `num_tokens` ids.

    `longest` is the most tokens that one may have; `window` None is `DEFAULT_WINDOW` or that, `stride` None half of it.
    Raises `RequestError` for a window or a stride that cannot be, and for a text without a token to score.
    """
    num_marks = len(marks)
    if num_tokens + num_marks < 2 or not num_tokens:
        raise RequestError(
            f"The text has {num_tokens} token{'s' if num_tokens != 1 else ''}, so there is none to score.",
            remedy="Give a longer text.",
        )
    width = min(DEFAULT_WINDOW, longest) if window is None else window
    if not num_marks + 2 <= width <= longest:
        raise RequestError(
            f"The window is {width} tokens.",
            remedy=f"It must be from {num_marks + 2} to {longest}, one less than max_model_len (--max-model-len).",
        )
    step = max(1, width // 2) if stride is None else stride
    most = width - num_marks
    if not 1 <= step <= most:
        raise RequestError(
            f"The stride is {step} tokens.", remedy=f"It must be from 1 to {most} for a window of {width}."
        )
    return Windows(num_tokens=num_tokens, marks=tuple(marks), window=width, stride=step)
