"""A codec over the tokenizers library, and the folder where built tokenizers are kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

from octavo.errors import ModelFileError

_FORMAT = 1
"""Counts changes of what is built from a GGUF file, so that older builds in the cache are not used."""


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


def load_library_file(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`. Raises `ModelFileError` when it cannot be read."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{path} cannot be read: {error}.", remedy="Download the file again.") from None


def cached_tokenizer(source: Path, cache_dir: Path, build: Callable[[], Tokenizer]) -> Tokenizer:
    """What `build` makes of the file `source`, from the cache when that very file was built before.

    A file is told by its path, size and modification time. A cache that cannot be read or written is passed over.
    """
    status = source.stat()
    identity = f"{_FORMAT} {tokenizers.__version__} {source.resolve()} {status.st_size} {status.st_mtime_ns}"
    path = cache_dir / "tokenizers" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
    if path.is_file():
        try:
            return load_library_file(path)
        except ModelFileError:
            pass  # A damaged cache entry is written anew below.
    tokenizer = build()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(tokenizer.to_str())
        os.replace(name, path)
    except OSError:
        pass  # The next start builds it again; nothing else is lost.
    return tokenizer
