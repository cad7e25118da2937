"""What every kind of tokenizer is made of: a codec, the ids that mean something, and chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class Codec(Protocol):
    """Text to ids and back. Marks of the format that stand in the text (`<|im_start|>`) become their own ids."""

    @property
    def vocab_size(self) -> int:
        """One above the largest id."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, and nothing added to them."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, marks included. Bytes that are no character become U+FFFD; unknown ids have no text."""

    def token_bytes(self) -> list[bytes]:
        """What each id adds to a text, behind others; marks of the format as they are written.

        Raises `UnsupportedModelError` where that depends on the neighbours."""


class SpecialTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The ids that mean something to the model."""

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Any of these ends a completion."""
    special_ids: frozenset[int] = frozenset()
    """Marks of the format, which are no text: skipped when decoding for people."""
    prefix_ids: tuple[int, ...] = ()
    """Put in front of a prompt, usually the BOS token."""
    suffix_ids: tuple[int, ...] = ()
    """Put behind a prompt."""


class TokenizerParts(NamedTuple):
    """What a file format yields."""

    codec: Codec
    special: SpecialTokens
    chat_templates: Mapping[str, str]
    """Jinja sources by name; the usual one is `default`."""


END_OF_TURN_MARKS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|eot|>",
    "[|endofturn|]",
)
"""Marks that end an answer in well-known chat formats; files often declare the end of a document alone."""


def end_of_turn_ids(codec: Codec, special_ids: frozenset[int], chat_templates: Mapping[str, str]) -> tuple[int, ...]:
    """Ids of the end-of-turn marks that the model's own chat template writes."""
    found = []
    for mark in END_OF_TURN_MARKS:
        if any(mark in template for template in chat_templates.values()):
            ids = codec.encode(mark)
            if len(ids) == 1 and ids[0] in special_ids:
                found.append(ids[0])
    return tuple(found)
