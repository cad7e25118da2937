"""Token ids to text, a token at a time.

A token's text depends on its neighbours: a character may be spread over several tokens, and some tokenizers drop the
space before the first token of what they decode. Both are settled by decoding a short window twice: once with and once
without the new token, always behind a token that has been shown already. What the second decoding adds is the new text.

    ids      ... context | window start ... shown | new
    text               decode(window)[num_shown:]  half a character at its end is held back

The work per token is bounded: the window holds the tokens of the last piece of text, and at most a few unfinished ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
"""What decoders put for bytes that are no character (yet)."""

CONTEXT_TOKENS = (6, 16)
"""Prompt tokens in front of the first generated one; the larger number where the smaller cuts a character in two."""

MAX_HELD_TOKENS = 8
"""A character of UTF-8 has 4 bytes, so it spans at most 4 tokens: text held for longer than this is no character."""

MAX_WINDOW_TOKENS = 64
"""A window whose tokens have no text at all stops growing here."""


class Decoder(Protocol):
    """The part of a tokenizer that this module needs."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:  # noqa: FBT001, FBT002
        """The text of `ids`."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark of the format rather than text."""


class IncrementalDetokenizer:
    """The text of one growing completion.

    Owns: a short window of token ids, and how much of its text has been shown.
    Never: the whole text (`add` returns what is new).
    """

    def __init__(
        self,
        decoder: Decoder,
        context_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._joins_marks = not (skip_special_tokens or spaces_between_special_tokens)
        """Whether a space in front of a special token behind another one is dropped."""
        self._follows_mark = False
        self._ids = self._context(context_ids)
        """The window: context or shown tokens first, then tokens whose text is still held back."""
        self._num_settled = len(self._ids)
        """Leading tokens of the window whose text has been shown (or belongs to the prompt)."""
        self._held_from = len(self._ids)
        """Leading tokens of the window up to the last one that let text be shown."""
        # A prompt that ends inside a character: its half is completed, and so shown, by the completion.
        self._num_shown = len(self._decode(self._ids).rstrip(REPLACEMENT))

    def add(self, token_id: int) -> str:
        """The text that becomes certain with this token; empty while a character is incomplete."""
        if not self._has_text(token_id):
            return ""
        return self._join(token_id, self._append(token_id)) if self._joins_marks else self._append(token_id)

    def _append(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if len(text) <= self._num_shown:
            self._drop_silent_tokens()
            return ""
        if text.endswith(REPLACEMENT) and len(self._ids) - self._held_from <= MAX_HELD_TOKENS:
            return self._show_certain(text.rstrip(REPLACEMENT))
        return self._show(text)

    def finish(self) -> str:
        """The text still held back; call once, after the last token."""
        text = self._decode(self._ids)
        new, self._num_shown = text[self._num_shown :], max(self._num_shown, len(text))
        return new

    def _join(self, token_id: int, new: str) -> str:
        is_mark = self._decoder.is_special(token_id)
        follows, self._follows_mark = self._follows_mark, is_mark
        return new.removeprefix(" ") if is_mark and follows else new

    def _context(self, prompt_ids: Sequence[int]) -> list[int]:
        window: list[int] = []
        for num_tokens in CONTEXT_TOKENS:
            window = [token_id for token_id in prompt_ids[-num_tokens:] if self._has_text(token_id)]
            if REPLACEMENT not in self._decode(window):
                break
        return window

    def _show_certain(self, text: str) -> str:
        """Show what stands before half a character."""
        new = text[self._num_shown :]
        if new:
            self._num_shown, self._held_from = len(text), len(self._ids)
            if len(self._ids) > MAX_WINDOW_TOKENS:
                # Every token ended inside a character. The last ones hold the whole of the one that is incomplete.
                self._ids = self._ids[-CONTEXT_TOKENS[1] :]
                self._num_settled = self._held_from = len(self._ids)
                self._num_shown = len(self._decode(self._ids).rstrip(REPLACEMENT))
        return new

    def _show(self, text: str) -> str:
        new = text[self._num_shown :]
        settled = self._ids[: self._num_settled]
        shown = self._ids[self._num_settled :]
        # The window restarts at the tokens just shown, unless they alone decode to nothing.
        alone = self._decode(shown)
        self._ids = shown if alone else settled + shown
        self._num_settled = self._held_from = len(self._ids)
        self._num_shown = len(alone) if alone else len(text)
        return new

    def _drop_silent_tokens(self) -> None:
        if len(self._ids) > MAX_WINDOW_TOKENS:
            del self._ids[self._held_from :]

    def _has_text(self, token_id: int) -> bool:
        return not (self._skip_special_tokens and self._decoder.is_special(token_id))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip_special_tokens) if ids else ""


class StopStrings:
    """Collects a growing text and cuts it at the first stop string, also across the borders of its pieces.

    Owns: the text so far. Holds back exactly the characters that are, so far, the beginning of a stop string.
    Never: tokens.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool) -> None:
        self._stop = tuple(stop)
        self._include_in_output = include_in_output
        self._released: list[str] = []
        self._num_taken = 0
        self._tail = ""
        """Text after what is released: between two calls the longest end of it that a stop string begins with."""
        self._search_from = 0
        """Characters of the tail before this one came below `min_tokens`: no stop string starts there."""

    @property
    def text(self) -> str:
        """All text so far, held characters included."""
        return "".join(self._released) + self._tail

    def add(self, new: str, *, may_stop: bool = True) -> str | None:
        """Append `new`. The stop string that the text now contains, if any; the text then ends at it.

        Of several, the one that ends first wins, then the longest: the answer does not depend on how the text was cut
        into pieces. Text that comes with `may_stop=False` is never part of a stop string.
        """
        self._tail += new
        if not may_stop:
            self._search_from = len(self._tail)
        found = [
            (position + len(stop), position, stop)
            for stop in self._stop
            if (position := self._tail.find(stop, self._search_from)) >= 0
        ]
        if not found:
            self._release(min((self._begins(stop) for stop in self._stop), default=len(self._tail)))
            return None
        end, position, stop = min(found)
        self._tail = self._tail[: end if self._include_in_output else position]
        return stop

    def finish(self) -> None:
        """Release what is held back: no more text comes."""
        self._release(len(self._tail))

    def take(self) -> str:
        """The released text that was not taken before."""
        new = "".join(self._released[self._num_taken :])
        self._num_taken = len(self._released)
        return new

    def _begins(self, stop: str) -> int:
        """The first place of the tail from which all of it is a beginning of `stop`; its end when there is none."""
        tail, end = self._tail, len(self._tail)
        place = max(self._search_from, end - len(stop) + 1)
        while (place := tail.find(stop[0], place)) >= 0:
            if stop.startswith(tail[place:]):
                return place
            place += 1
        return end

    def _release(self, num_characters: int) -> None:
        if num_characters > 0:
            self._released.append(self._tail[:num_characters])
            self._tail = self._tail[num_characters:]
            self._search_from = max(0, self._search_from - num_characters)
