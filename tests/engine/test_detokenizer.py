"""Text comes out a token at a time as it would in one piece; stop strings are found wherever a token ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.detokenizer import MAX_WINDOW_TOKENS, IncrementalDetokenizer, StopStrings
from tests.engine.byte_tokenizer import BOS, EOS, ByteTokenizer, SpaceDroppingTokenizer

TEXTS = st.text(alphabet="ab é€漢字😀\U0001f468\u200d\n", max_size=40)


def _pieces(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


def _detokenizer(context: list[int] | None = None, tokenizer: ByteTokenizer | None = None) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(tokenizer or ByteTokenizer(), context or [BOS], skip_special_tokens=True)


@given(prompt=TEXTS, text=TEXTS)
def test_pieces_join_to_the_whole_text(prompt: str, text: str) -> None:
    tokenizer = ByteTokenizer()
    pieces = _pieces(_detokenizer(tokenizer.encode(prompt)), list(text.encode()))
    assert "".join(pieces) == text


@given(text=TEXTS)
def test_a_piece_never_holds_half_a_character(text: str) -> None:
    assert not any("\ufffd" in piece for piece in _pieces(_detokenizer(), list(text.encode())))


class ChunkTokenizer(ByteTokenizer):
    """Token i is the i-th of some pieces of bytes, cut anywhere."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.chunks[token_id] for token_id in ids).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return False


def _cut(content: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(content) + 1) for cut in cuts}), len(content)]
    return [content[start:end] for start, end in itertools.pairwise(places) if end > start]


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=60))
def test_every_character_comes_with_the_token_that_completes_it(text: str, cuts: list[int]) -> None:
    chunks = _cut(text.encode(), cuts)
    detokenizer = IncrementalDetokenizer(ChunkTokenizer(chunks), [], skip_special_tokens=True)
    shown = ""
    for number in range(len(chunks)):
        shown += detokenizer.add(number)
        assert shown == b"".join(chunks[: number + 1]).decode(errors="ignore")
    assert shown + detokenizer.finish() == text


def test_tokens_that_all_end_inside_a_character_show_what_is_complete_in_bounded_work() -> None:
    text = "漢字" * 200
    content = text.encode()
    chunks = [content[:1], *(content[start : start + 3] for start in range(1, len(content), 3))]
    longest = 0

    class Counting(ChunkTokenizer):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return super().decode(ids, skip_special_tokens)

    pieces = _pieces(IncrementalDetokenizer(Counting(chunks), [], skip_special_tokens=True), list(range(len(chunks))))
    assert "".join(pieces) == text
    assert pieces[:3] == ["", "漢", "字"]
    assert longest <= MAX_WINDOW_TOKENS + 1


@given(text=TEXTS, half=st.sampled_from([b"\xe2", b"\xe2\x82", b"\xf0\x9f\x98"]), cuts=st.lists(st.integers(0, 200)))
def test_half_a_character_at_the_end_is_shown_when_no_more_comes(text: str, half: bytes, cuts: list[int]) -> None:
    chunks = _cut(text.encode() + half, cuts)
    detokenizer = IncrementalDetokenizer(ChunkTokenizer(chunks), [], skip_special_tokens=True)
    shown = "".join(detokenizer.add(number) for number in range(len(chunks)))
    assert (shown, detokenizer.finish()) == (text, "\ufffd")


def test_special_tokens_can_stand_without_a_space_between_them() -> None:
    class Spacing(ByteTokenizer):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            pieces = [super(Spacing, self).decode([token_id], skip_special_tokens) for token_id in ids]
            return " ".join(piece for piece in pieces if piece)

    def text(*, spaces: bool) -> list[str]:
        detokenizer = IncrementalDetokenizer(
            Spacing(), [300], skip_special_tokens=False, spaces_between_special_tokens=spaces
        )
        return _pieces(detokenizer, [EOS, BOS, 300, EOS])

    assert text(spaces=True) == [" <eos>", " <bos>", " the", " <eos>", ""]
    assert text(spaces=False) == [" <eos>", "<bos>", " the", " <eos>", ""]


def test_a_character_comes_with_its_last_byte() -> None:
    assert _pieces(_detokenizer(), list("a€b".encode())) == ["a", "", "", "€", "b", ""]


def test_the_space_behind_the_prompt_is_kept_and_that_of_a_first_token_dropped() -> None:
    tokenizer = SpaceDroppingTokenizer()
    after_prompt = _pieces(_detokenizer([BOS, 300], tokenizer), [301, 302])
    assert after_prompt == [" cat", " sat", ""]
    assert _pieces(_detokenizer([BOS], tokenizer), [301, 302]) == ["cat", " sat", ""]


def test_spaces_survive_special_tokens_in_between() -> None:
    assert _pieces(_detokenizer([300], SpaceDroppingTokenizer()), [301, EOS, 302]) == [" cat", "", " sat", ""]


def test_special_tokens_show_when_asked_for() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), [300], skip_special_tokens=False)
    assert _pieces(detokenizer, [301, EOS]) == [" cat", "<eos>", ""]


def test_a_prompt_that_ends_inside_a_character_is_completed() -> None:
    assert _pieces(_detokenizer([*b"ab", 0xE2, 0x82]), [0xAC, *b"!"]) == ["€", "!", ""]


def test_a_prompt_whose_last_tokens_start_inside_a_character_adds_nothing() -> None:
    context = list("漢字漢字x漢字".encode())
    assert _pieces(_detokenizer(context), [*b"ok"]) == ["o", "k", ""]


def test_bytes_that_are_no_character_are_shown_in_the_end() -> None:
    pieces = _pieces(_detokenizer(), [0xFF] * 30)
    assert "".join(pieces) == "\ufffd" * 30
    assert any(pieces[:-1]), "they must not be held back for ever"
    assert "".join(_pieces(_detokenizer(), [0xE2, 0x82])) == "\ufffd"


def test_tokens_without_text_do_not_pile_up() -> None:
    class Counting(ByteTokenizer):
        longest = 0

        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:  # type: ignore[override]
            self.longest = max(self.longest, len(ids))
            return super().decode(ids, skip_special_tokens)

    tokenizer = Counting()
    assert _pieces(_detokenizer([300], tokenizer), [304] * 500 + [301])[-2:] == [" cat", ""]
    assert tokenizer.longest <= MAX_WINDOW_TOKENS + 8


def test_the_work_per_token_does_not_grow() -> None:
    lengths: list[int] = []

    class Recording(ByteTokenizer):
        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:  # type: ignore[override]
            lengths.append(len(ids))
            return super().decode(ids, skip_special_tokens)

    _pieces(_detokenizer([BOS], Recording()), list("a é 漢 😀 ".encode()) * 50)
    assert max(lengths) <= 16


def _feed(stop: list[str], pieces: list[str], *, include: bool = False) -> tuple[str, str | None, list[str]]:
    """(text, stop string, what was released when)."""
    strings = StopStrings(stop, include_in_output=include)
    released = []
    for piece in pieces:
        found = strings.add(piece)
        if found is not None:
            strings.finish()
            return strings.text, found, [*released, strings.take()]
        released.append(strings.take())
    strings.finish()
    return strings.text, None, [*released, strings.take()]


@pytest.mark.parametrize(
    ("stop", "pieces", "text", "found"),
    [
        (["END"], ["abc EN", "D more"], "abc ", "END"),
        (["END"], ["abc EN", "D more"], "abc ", "END"),
        (["END"], list("abc ENENDx"), "abc EN", "END"),
        (["cd", "bcde"], ["abcdef"], "ab", "cd"),
        (["cd", "bcd"], ["abcdef"], "a", "bcd"),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
        (["x"], ["abc"], "abc", None),
        ([], ["abc", "def"], "abcdef", None),
        (["é!"], ["caf", "é", "!"], "caf", "é!"),
    ],
)
def test_text_is_cut_at_the_stop_string(stop: list[str], pieces: list[str], text: str, found: str | None) -> None:
    got_text, got_found, released = _feed(stop, pieces)
    assert (got_text, got_found) == (text, found)
    assert "".join(released) == text, "what streamed out is what is kept"


def test_the_stop_string_itself_is_kept_when_asked_for() -> None:
    assert _feed(["END"], ["abc EN", "D more"], include=True)[:2] == ("abc END", "END")


def test_text_streams_as_soon_as_no_stop_string_can_take_it_back() -> None:
    assert _feed(["END"], ["abcdef", "gh"])[2] == ["abcdef", "gh", ""]
    assert _feed(["END"], ["abE", "N", "N", "EN"])[2] == ["ab", "", "ENN", "", "EN"]
    assert _feed(["aab"], ["aaa", "c"])[2] == ["a", "aac", ""]
    assert _feed([], ["abcdef", "gh"])[2] == ["abcdef", "gh", ""]


def test_text_below_min_tokens_is_no_part_of_a_stop_string() -> None:
    strings = StopStrings(["END"], include_in_output=False)
    assert strings.add("ENDEN", may_stop=False) is None
    assert strings.add("D", may_stop=True) is None
    assert strings.add(" END") == "END"
    assert strings.text == "ENDEND "


@given(
    text=st.text(alphabet="ab", max_size=30),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=3),
)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(text: str, stop: list[str]) -> None:
    strings = StopStrings(stop, include_in_output=False)
    released = seen = ""
    for character in text:
        seen += character
        if strings.add(character) is not None:
            break
        released += strings.take()
        held = [seen[place:] for place in range(len(seen)) if any(item.startswith(seen[place:]) for item in stop)]
        assert seen == released + max(held, key=len, default="")


@given(
    text=st.text(alphabet="ab", max_size=30),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(min_value=0, max_value=30), max_size=8),
    include=st.booleans(),
)
def test_how_the_text_is_cut_into_pieces_does_not_matter(
    text: str, stop: list[str], cuts: list[int], include: bool
) -> None:
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    whole, one_by_one = _feed(stop, [text], include=include), _feed(stop, list(text), include=include)
    pieced = _feed(stop, pieces, include=include)
    assert whole[:2] == one_by_one[:2] == pieced[:2]
    assert "".join(pieced[2]) == pieced[0]
