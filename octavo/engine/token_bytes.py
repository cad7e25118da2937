"""The bytes that each token adds to a text, whatever kind of vocabulary it is of.

A grammar is about bytes. What a token adds must then not depend on its neighbours, as it does where words are joined by
rules (WordPiece): such vocabularies are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from octavo.errors import UnsupportedModelError

_PLAIN_STEPS = frozenset(("ByteFallback", "Fuse", "Strip", "Replace", "Metaspace"))
"""Decoders that work token by token; `Strip` takes a space at the very start of a text, and is no token's business."""


def library_token_bytes(tokenizer: Any) -> list[bytes]:
    """By id, for a tokenizer of the tokenizers library; empty where an id has no token.

    Raises `UnsupportedModelError` where the text of a token depends on its neighbours.
    """
    steps = list(_steps(json.loads(tokenizer.decoder.__getstate__()))) if tokenizer.decoder is not None else []
    kinds = {step["type"] for step in steps}
    if not kinds <= _PLAIN_STEPS | {"ByteLevel"}:
        _refuse(f"its decoder has {', '.join(sorted(kinds - _PLAIN_STEPS - {'ByteLevel'}))}")
    replaced = [_replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")]
    is_byte_level, falls_back = "ByteLevel" in kinds, "ByteFallback" in kinds
    added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    found = [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id >= len(found):  # ids may have gaps
            found += [b""] * (token_id + 1 - len(found))
        if token_id in added:
            found[token_id] = added[token_id].encode()
        elif is_byte_level:
            found[token_id] = byte_level_bytes(token)
        elif falls_back and (byte := fallback_byte(token)) is not None:
            found[token_id] = byte
        else:
            for old, new in replaced:
                token = token.replace(old, new)
            found[token_id] = token.encode()
    return found


def decoded_token_bytes(decode: Any, vocab_size: int, probe: Sequence[int]) -> list[bytes]:
    """By id, for a tokenizer that can only decode: what each id adds behind the ids of `probe`.

    A token that is part of a character adds nothing that can be told, and is left out (empty).
    """
    before = decode(probe)
    texts = [decode([*probe, token_id]) for token_id in range(vocab_size)]
    return [text[len(before) :].encode() if text.startswith(before) and "\ufffd" not in text else b"" for text in texts]


def byte_level_bytes(token: str) -> bytes:
    """What a token of a byte-level vocabulary stands for: each of its characters is a byte under another name."""
    return b"".join(bytes((_BYTE_OF[char],)) if char in _BYTE_OF else char.encode() for char in token)


def fallback_byte(token: str) -> bytes | None:
    """The byte that `<0xE2>` spells; None for any other token."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            return None
    return None


def _byte_names() -> dict[str, int]:
    """GPT-2's names of bytes: visible Latin-1 characters are their own, the others follow from U+0100 on, in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_names()


def _steps(decoder: dict[str, Any]) -> Iterable[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _replacement(step: dict[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step["pattern"].get("String")
    if pattern is None:
        _refuse("its decoder replaces by a regular expression")
    return pattern, step["content"]


def _refuse(why: str) -> None:
    raise UnsupportedModelError(
        f"This tokenizer's tokens have no bytes of their own: {why}.",
        remedy="Leave structured_outputs and response_format out, and check the text yourself.",
    )
