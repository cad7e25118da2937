from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.sentencepiece_bpe import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceBPE,
)
from octavo.errors import ModelFileError
from tests.engine.scripts import TEXTS
from tests.formats import build

BYTES = [(f"<0x{value:02X}>", 0.0, BYTE) for value in range(256)]
MARKS = [("<s>", 0.0, CONTROL), ("<b>", 0.0, USER_DEFINED), ("<bold>", 0.0, USER_DEFINED), ("  ", 0.0, USER_DEFINED)]


def codec(pieces: list[tuple[str, float, int]], *, add_space_prefix: bool = False) -> SentencePieceBPE:
    """A codec of (text, score, kind); the first piece is the unknown one."""
    texts, scores, kinds = zip(*pieces, strict=True)
    array = np.frombuffer(b"".join(map(build.string, texts)), dtype=np.uint8)
    return SentencePieceBPE(
        array,
        np.array(scores, dtype=np.float32),
        np.array(kinds, dtype=np.int32),
        unknown_id=0,
        add_space_prefix=add_space_prefix,
    )


def small(*words: str) -> list[tuple[str, float, int]]:
    """Bytes, marks, and words whose scores fall in the order given."""
    return [
        ("<unk>", 0.0, UNKNOWN), *BYTES, *MARKS,
        *((word.replace(" ", SPACE_MARK), -float(rank), NORMAL) for rank, word in enumerate(words)),
    ]  # fmt: skip


def pieces_of(pieces: list[tuple[str, float, int]], text: str, **options: Any) -> list[str]:
    return [pieces[index][0].replace(SPACE_MARK, " ") for index in codec(pieces, **options).encode(text)]


def test_the_best_score_merges_first_and_the_leftmost_of_equals() -> None:
    assert pieces_of(small("a", "b", "c", "bc", "ab", "abc"), "abc") == ["abc"]
    assert pieces_of(small("a", "b", "c", "ab", "bc"), "abc") == ["ab", "c"]
    assert pieces_of(small("a", "b", "c", "bc", "ab"), "abc") == ["a", "bc"]
    assert pieces_of(small("a", "aa"), "aaaaa") == ["aa", "aa", "a"]


def test_a_word_that_no_merge_reaches_is_not_taken() -> None:
    assert pieces_of(small("a", "b", "c", "abc"), "abc") == ["a", "b", "c"]


def test_spaces_are_marked_and_may_be_put_in_front() -> None:
    pieces = small("a", " ", " a")
    assert pieces_of(pieces, "a a") == ["a", " a"]
    assert pieces_of(pieces, "a a", add_space_prefix=True) == [" a", " a"]
    assert pieces_of(pieces, "<s>a", add_space_prefix=True) == ["<s>", "a"]
    assert pieces_of(pieces, "", add_space_prefix=True) == []


def test_what_is_no_piece_becomes_bytes() -> None:
    assert pieces_of(small("a"), "aé") == ["a", "<0xC3>", "<0xA9>"]


def test_without_byte_pieces_it_becomes_the_unknown_one() -> None:
    pieces = [("<unk>", 0.0, UNKNOWN), ("a", 0.0, NORMAL)]
    assert codec(pieces).encode("aé") == [1, 0, 0]


def test_the_longest_mark_is_found_before_merging() -> None:
    pieces = small("a", "<", "b", ">", "<b", "o", "l", "d", " ")
    assert pieces_of(pieces, "a<bold><b>") == ["a", "<bold>", "<b>"]
    assert pieces_of(pieces, "<bol<b>") == ["<b", "o", "l", "<b>"]
    assert pieces_of(pieces, "a   a") == ["a", "  ", " ", "a"]


def test_unused_and_unknown_pieces_never_come_from_text() -> None:
    pieces = [*small("a", "b"), ("ab", 9.0, UNUSED)]
    assert pieces_of(pieces, "ab<unk>")[:2] == ["a", "b"]
    assert 0 not in codec(pieces).encode("ab<unk>")


def test_decoding_joins_bytes_and_takes_the_prefix_away() -> None:
    pieces = small("a", " a", " ")
    ids = {text: index for index, (text, _, _) in enumerate(pieces)}
    snowman = [ids[f"<0x{byte:02X}>"] for byte in "☃".encode()]
    plain = codec(pieces)
    assert plain.decode([ids["a"], *snowman, ids["▁a"]]) == "a☃ a"
    assert plain.decode(snowman[:2]) == "\ufffd"
    assert plain.decode([ids["▁a"]]) == " a"
    assert plain.decode([-1, len(pieces), ids["a"]]) == "a"
    assert codec(pieces, add_space_prefix=True).decode([ids["▁a"], ids["▁a"]]) == "a a"


def test_a_lone_surrogate_is_no_reason_to_fail() -> None:
    assert pieces_of(small("a"), "a\ud800a") == ["a", "<0x3F>", "a"]


def test_a_byte_piece_that_is_none_is_refused() -> None:
    with pytest.raises(ModelFileError, match="marked as a byte, but is written b'<0xZZ>'"):
        codec([("<unk>", 0.0, UNKNOWN), ("<0xZZ>", 0.0, BYTE)])


# Against the library itself, on a vocabulary trained for the purpose ------------------------------------------------


@cache
def trained(*, add_space_prefix: bool) -> tuple[Any, SentencePieceBPE]:
    """(the sentencepiece library's processor, a codec of the same pieces)"""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentences = [line for text in TEXTS.values() for line in text.splitlines() if line.strip("\x00")] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, model_type="bpe", vocab_size=1200, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=add_space_prefix, user_defined_symbols=["<b>", "\n", "\n\n", "\u2581\u2581"],
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = [
        (processor.is_byte, BYTE), (processor.is_unknown, UNKNOWN), (processor.is_control, CONTROL),
        (processor.is_unused, UNUSED),
    ]  # fmt: skip
    pieces = []
    for index in range(processor.get_piece_size()):
        text = processor.id_to_piece(index)
        kind = next((kind for check, kind in kinds if check(index)), NORMAL)
        if text in ("<b>", "\n", "\n\n", "\u2581\u2581"):
            kind, text = USER_DEFINED, text.replace("\u2581", " ")
        # The library finds no control piece in text: its callers do that.
        pieces.append((text, processor.get_score(index), UNUSED if kind == CONTROL else kind))
    return processor, codec(pieces, add_space_prefix=add_space_prefix)


@pytest.mark.parametrize("add_space_prefix", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_real_text_gives_the_librarys_ids(name: str, add_space_prefix: bool) -> None:
    processor, mine = trained(add_space_prefix=add_space_prefix)
    assert mine.encode(TEXTS[name]) == processor.encode(TEXTS[name])


@settings(max_examples=300)
@given(st.text(st.sampled_from("  \n\tabcdehinorst<b>/ÄéжщЯ漢字印あ한글ال१क👍😀\u200d𒀀▁.'19"), max_size=60))
def test_any_text_gives_the_librarys_ids(text: str) -> None:
    processor, mine = trained(add_space_prefix=False)
    ids = mine.encode(text)
    assert ids == processor.encode(text)
    assert mine.decode(ids) == text.replace(SPACE_MARK, " ")
