"""The tokenizer that a GGUF file describes in its metadata."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.engine.byte_level_bpe import build_byte_level, build_spaced, splitting_of
from octavo.engine.codec import Codec, SpecialTokens, TokenizerParts, end_of_turn_ids
from octavo.engine.library_codec import LibraryCodec
from octavo.engine.sentencepiece_bpe import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceBPE
from octavo.engine.unigram import build_unigram
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFArray, GGUFFile

Kinds = npt.NDArray[np.int32]

_PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos", "eot", "eom")
"""Ends of a document, of a turn, of a message that waits for a tool."""

_BRACKET = re.compile(r"<(start|end)_of_(?=\w+>$)")


def load_gguf_tokenizer(file: GGUFFile) -> TokenizerParts:
    """Raises `UnsupportedModelError` for an unknown kind of tokenizer, `ModelFileError` for damaged metadata."""
    name = file.get(_PREFIX + "model", str)
    if name not in CODECS:
        raise UnsupportedModelError(
            f"{file.path} has a tokenizer of the kind {name!r}; known are " + ", ".join(CODECS) + ".",
            remedy="Give the original model's folder or hub id as --tokenizer.",
        )
    kinds = _kinds(file)
    codec, adds_bos = CODECS[name](file, kinds)
    special_ids = frozenset(np.flatnonzero((kinds == CONTROL) | (kinds == UNKNOWN)).tolist()) | _brackets(file, kinds)
    templates = _chat_templates(file)
    bos = _token_id(file, "bos", codec.vocab_size)
    ends = [token_id for key in _END_KEYS if (token_id := _token_id(file, key, codec.vocab_size)) is not None]
    ends += end_of_turn_ids(codec, special_ids, templates)
    eos = _token_id(file, "eos", codec.vocab_size)
    special_ids |= frozenset(ends) | frozenset(() if bos is None else (bos,))
    add_bos = file.get(_PREFIX + "add_bos_token", bool, adds_bos)
    add_eos = file.get(_PREFIX + "add_eos_token", bool, False)
    return TokenizerParts(
        codec,
        SpecialTokens(
            bos_token_id=bos,
            eos_token_ids=tuple(dict.fromkeys(ends)),
            special_ids=special_ids,
            prefix_ids=(bos,) if add_bos and bos is not None else (),
            suffix_ids=(eos,) if add_eos and eos is not None else (),
        ),
        templates,
    )


def _tokens(file: GGUFFile) -> GGUFArray:
    tokens = file.array(_PREFIX + "tokens")
    if tokens is None or not tokens.is_strings:
        raise ModelFileError(
            f"{file.path} holds no vocabulary.", remedy="Give another tokenizer's folder or hub id as --tokenizer."
        )
    return tokens


def _kinds(file: GGUFFile) -> Kinds:
    """GGUF's token type of each token; files without types have normal tokens alone."""
    tokens = _tokens(file)
    kinds = file.array(_PREFIX + "token_type")
    if kinds is None:
        return np.full(len(tokens), NORMAL, dtype=np.int32)
    return _checked(file, "token_type", kinds, len(tokens)).astype(np.int32)


def _brackets(file: GGUFFile, kinds: Kinds) -> frozenset[int]:
    """User-defined tokens that open and close a passage: `<start_of_X>` with an `<end_of_X>` beside it.

    Token types alone do not part marks from text. Gemma 3's files give the type user-defined to line breaks and HTML
    tags, which are text, and to `<start_of_image>`, which the model's own tokenizer.json marks as special.
    """
    ids = np.flatnonzero(kinds == USER_DEFINED).tolist()
    texts = _tokens(file).texts_at(ids)
    stems = {text: _BRACKET.sub("", text, count=1) for text in texts if _BRACKET.match(text)}
    paired = {stem for stem, count in Counter(stems.values()).items() if count == 2}
    return frozenset(index for index, text in zip(ids, texts, strict=True) if stems.get(text) in paired)


def _checked(file: GGUFFile, key: str, array: GGUFArray, length: int) -> npt.NDArray[Any]:
    if len(array) != length:
        raise ModelFileError(
            f"{file.path} has {length} tokens, but {len(array)} entries of {_PREFIX}{key}.",
            remedy="Download the file again, or convert the model again.",
        )
    return np.asarray(array.numbers())


def _token_id(file: GGUFFile, name: str, vocab_size: int) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    if key not in file.metadata:
        return None
    token_id = file.get(key, int)
    if token_id == 0xFFFFFFFF:  # how some converters write "none"
        return None
    if not 0 <= token_id < vocab_size:
        raise ModelFileError(
            f"{file.path}: {key} is {token_id}, but the vocabulary has {vocab_size} tokens.",
            remedy="Download the file again, or convert the model again.",
        )
    return token_id


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    """`tokenizer.chat_template` is the default one; `tokenizer.chat_template.NAME` are others."""
    base = "tokenizer.chat_template"
    names = {
        key: key.removeprefix(base).removeprefix(".") or "default" for key in file.metadata if key.startswith(base)
    }
    return {name: value for key, name in names.items() if isinstance(value := file.metadata[key], str) and name != "s"}


def _sentencepiece(file: GGUFFile, kinds: Kinds) -> tuple[Codec, bool]:
    tokens, scores = _tokens(file), file.array(_PREFIX + "scores")
    if scores is None:
        raise ModelFileError(f"{file.path} has a SentencePiece vocabulary without scores.", remedy="Convert it again.")
    if file.get(_PREFIX + "remove_extra_whitespaces", bool, False):
        raise UnsupportedModelError(
            f"{file.path} has a tokenizer that removes repeated spaces.",
            remedy="Give the original model's folder or hub id as --tokenizer.",
        )
    codec = SentencePieceBPE(
        np.asarray(tokens.stored()),
        _checked(file, "scores", scores, len(tokens)).astype(np.float32),
        kinds,
        unknown_id=_token_id(file, "unknown", len(tokens)) or 0,
        add_space_prefix=file.get(_PREFIX + "add_space_prefix", bool, True),
    )
    return codec, True


def _merges(file: GGUFFile) -> list[str]:
    merges = file.array(_PREFIX + "merges")
    if merges is None:
        raise ModelFileError(f"{file.path} has a BPE vocabulary without merges.", remedy="Convert the model again.")
    return merges.strings()


def _byte_level(file: GGUFFile, kinds: Kinds) -> tuple[Codec, bool]:
    pre = file.get(_PREFIX + "pre", str, "default")
    adds_bos = splitting_of(pre).add_bos

    return LibraryCodec(build_byte_level(_tokens(file).strings(), kinds.tolist(), _merges(file), pre)), adds_bos


def _spaced(file: GGUFFile, kinds: Kinds) -> tuple[Codec, bool]:
    return LibraryCodec(build_spaced(_tokens(file).strings(), kinds.tolist(), _merges(file))), False


def _unigram(file: GGUFFile, kinds: Kinds) -> tuple[Codec, bool]:
    tokens, scores = _tokens(file), file.array(_PREFIX + "scores")
    if scores is None:
        raise ModelFileError(f"{file.path} has a unigram vocabulary without scores.", remedy="Convert it again.")
    character_map = file.array(_PREFIX + "precompiled_charsmap")
    tokenizer = build_unigram(
        tokens.strings(),
        _checked(file, "scores", scores, len(tokens)).astype(np.float64).tolist(),
        kinds.tolist(),
        unknown_id=_token_id(file, "unknown", len(tokens)) or 0,
        character_map=np.asarray(character_map.numbers()).astype(np.uint8).tobytes()
        if character_map is not None
        else b"",
        add_space_prefix=file.get(_PREFIX + "add_space_prefix", bool, True),
        remove_extra_spaces=file.get(_PREFIX + "remove_extra_whitespaces", bool, False),
    )
    return LibraryCodec(tokenizer), False


CODECS: dict[str, Callable[[GGUFFile, Kinds], tuple[Codec, bool]]] = {
    "llama": _sentencepiece,
    "gpt2": _byte_level,
    "gemma4": _spaced,
    "t5": _unigram,
}
"""`tokenizer.ggml.model` -> what builds (its codec, whether a BOS token is added when the file does not say)."""
