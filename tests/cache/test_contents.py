from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.contents import BlockContents, block_contents, root_content


def blocks(contents: BlockContents) -> list[bytes]:
    return [contents.block(place) for place in range(len(contents))]


def test_a_blocks_content_is_its_token_ids() -> None:
    tokens = array("i", range(100, 113))
    contents = blocks(block_contents(tokens, 4, 0, 3))
    assert contents == [tokens[0:4].tobytes(), tokens[4:8].tobytes(), tokens[8:12].tobytes()]
    assert blocks(block_contents(tokens, 4, 1, 2)) == contents[1:2]
    assert blocks(block_contents(tokens, 4, 2, 2)) == []


def test_zero_token_ids_count() -> None:
    assert blocks(block_contents(array("i", [0] * 8), 4, 0, 2)) == [bytes(16)] * 2
    assert (
        blocks(block_contents(array("i", [7, 0, 0, 0, 7, 0, 0, 0]), 4, 0, 2))
        == [array("i", [7, 0, 0, 0]).tobytes()] * 2
    )


@given(st.lists(st.integers(0, 2**31 - 1), max_size=60), st.integers(1, 5), st.data())
def test_contents_in_pieces_equal_contents_at_once(tokens: list[int], size: int, data: st.DataObject) -> None:
    ids = array("i", tokens)
    count = len(tokens) // size
    cut = data.draw(st.integers(0, count))
    pieces = blocks(block_contents(ids, size, 0, cut)) + blocks(block_contents(ids, size, cut, count))
    assert pieces == blocks(block_contents(ids, size, 0, count))


def test_media_tell_equal_placeholder_tokens_apart() -> None:
    tokens = array("i", [1, 2, 9, 9, 9, 9, 9, 3, 4, 5, 6, 7])
    plain = blocks(block_contents(tokens, 4, 0, 3))
    one = blocks(block_contents(tokens, 4, 0, 3, [(2, 5, b"picture one")]))
    two = blocks(block_contents(tokens, 4, 0, 3, [(2, 5, b"picture two")]))
    moved = blocks(block_contents(tokens, 4, 0, 3, [(1, 6, b"picture one")]))
    assert [a == b for a, b in zip(plain, one, strict=True)] == [False, False, True]
    assert len({c[1] for c in (plain, one, two, moved)}) == 4
    assert blocks(block_contents(tokens, 4, 1, 3, [(2, 5, b"picture one")])) == one[1:]


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)
MEDIA = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.sampled_from([b"x", b"y"])), max_size=2)


@given(TOKENS, TOKENS, st.integers(1, 3), MEDIA, st.data())
def test_common_blocks_are_counted_as_one_by_one(
    mine: list[int], theirs: list[int], size: int, media: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    contents = block_contents(array("i", mine), size, 0, len(mine) // size, media)
    other = block_contents(array("i", theirs), size, 0, len(theirs) // size)
    first, second = (data.draw(st.integers(0, len(each))) for each in (contents, other))
    expected = 0
    for left, right in zip(blocks(contents)[first:], blocks(other)[second:], strict=False):
        if left != right:
            break
        expected += 1
    assert contents.num_common(first, bytearray(other.token_bytes), second) == expected


@given(st.sets(st.integers(0, 9)), st.integers(0, 9))
def test_runs_part_where_media_begin(places: set[int], first: int) -> None:
    contents = BlockContents(bytes(40), 4, dict.fromkeys(places, b"x"))
    runs = list(contents.runs(first))
    assert [place for start, stop in runs for place in range(start, stop)] == list(range(first, 10))
    assert [start for start, _ in runs] == [first, *sorted(place for place in places if place > first)]


SHORT = st.one_of(st.none(), st.text(alphabet="a\0+-", max_size=4))


@given(SHORT, SHORT, SHORT, SHORT)
def test_salt_and_adapter_never_run_into_each_other(a: str | None, b: str | None, c: str | None, d: str | None) -> None:
    assert (root_content(salt=a, adapter=b) == root_content(salt=c, adapter=d)) == ((a, b) == (c, d))


def test_a_plain_request_has_an_empty_root() -> None:
    assert root_content() == b""
    assert root_content(salt="") != b""
