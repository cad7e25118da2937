"""The bytes of tokens: put together they are the text that the tokenizer makes of its ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo.config import ModelSource, read_environment
from octavo.engine.token_bytes import byte_level_bytes, decoded_token_bytes, fallback_byte, library_token_bytes
from octavo.engine.tokenizer import load_tokenizer
from octavo.errors import UnsupportedModelError
from octavo.formats.source import locate
from tests.engine.byte_tokenizer import ByteTokenizer

TEXTS = ["Hello, world!", ' {"a": [1, 2]}\n\t', "é日本😀 <0x41> \u2581 x", "<mark>a</mark>  b"]


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: index for index, token in enumerate([*alphabet, "Ġ{", "Ã©"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[("Ġ", "{"), ("Ã", "©")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<mark>", special=True)])
    tokenizer.add_tokens([AddedToken("</mark>", special=False)])
    return tokenizer


def with_spaces_marked() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581{", "o", "lo", "日", "x"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[("l", "o")][:0],
                   byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, with_spaces_marked])
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_put_together_are_the_text(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    tokens = library_token_bytes(tokenizer)
    assert len(tokens) == tokenizer.get_vocab_size()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(tokens[index] for index in ids).decode() == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_decoder_of_words_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"a": 0, "##b": 1}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        library_token_bytes(tokenizer)


def test_a_decoder_that_marks_spaces_and_no_decoder_at_all() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"\u2581a": 0, "b": 1}, merges=[]))
    assert library_token_bytes(tokenizer) == ["\u2581a".encode(), b"b"]
    tokenizer.decoder = decoders.Metaspace()
    assert library_token_bytes(tokenizer) == [b" a", b"b"]


@given(st.binary(max_size=8))
def test_every_byte_has_a_name_in_a_byte_level_vocabulary(data: bytes) -> None:
    names = "".join(_NAMES[byte] for byte in data)
    assert byte_level_bytes(names) == data


_NAMES = {byte_level_bytes(char)[0]: char for char in pre_tokenizers.ByteLevel.alphabet()}


def test_bytes_that_are_spelled() -> None:
    assert [fallback_byte(token) for token in ("<0xE2>", "<0x0A>", "<0xZZ>", "<0xE2", "a")] == [
        b"\xe2", b"\n", None, None, None
    ]  # fmt: skip


def test_where_there_is_only_decode_parts_of_characters_are_left_out() -> None:
    tokenizer = ByteTokenizer()

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    found = decoded_token_bytes(decode, 256, tokenizer.encode("a", add_special_tokens=False))
    assert found[ord("b")] == b"b"
    assert found[0xC3] == b""


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("model", ["demo", "demo-smollm2"])
def test_bytes_of_real_vocabularies(model: str) -> None:
    files = locate(ModelSource(model=model), read_environment())
    tokenizer: Any = load_tokenizer(files)
    tokens = tokenizer.token_bytes()
    assert len(tokens) == tokenizer.vocab_size
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(tokens[index] for index in ids).decode() == tokenizer.decode(ids, skip_special_tokens=False)
    unspecial = [index for index in range(0, len(tokens), 97) if not tokenizer.is_special(index)]
    before = tokenizer.encode("a", add_special_tokens=False)
    for index in unspecial:
        assert tokens[index].decode(errors="replace") == tokenizer.decode([*before, index]).removeprefix("a")
