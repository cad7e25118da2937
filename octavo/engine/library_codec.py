"""A codec over the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from octavo.engine.token_bytes import library_token_bytes
from octavo.errors import ModelFileError


class LibraryCodec:
    """**Owns:** one tokenizer of the library. **Never:** adds anything to what it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Padding and truncation that a file may ask for belong to training.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def encode(self, text: str) -> list[int]:
        clean = text.encode("utf-8", "replace").decode()
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def token_bytes(self) -> list[bytes]:
        return library_token_bytes(self._tokenizer)


def load_library_file(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`. Raises `ModelFileError` when it cannot be read."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{path} cannot be read: {error}.", remedy="Download the file again.") from None
