from __future__ import annotations

import time
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.block_pool import BlockPool
from octavo.cache.prefix_cache import NO_NODE, PLAIN_ROOT, PrefixCache, block_contents, root_content
from octavo.errors import InvariantError

A, B, C, D = b"aaaa", b"bbbb", b"cccc", b"dddd"


def empty(num_groups: int = 1) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(100)
    return pool, PrefixCache(pool, num_groups=num_groups)


def extend(prefixes: PrefixCache, *contents: bytes, root: bytes = b"") -> list[int]:
    """Nodes of `contents` under a root; the last one stays held."""
    return prefixes.extend(prefixes.hold_root(root), list(contents))


# -- contents ------------------------------------------------------------------------------------------------------


def test_a_blocks_content_is_its_token_ids() -> None:
    tokens = array("i", range(100, 113))
    contents = block_contents(tokens, 4, 0, 3)
    assert contents == [tokens[0:4].tobytes(), tokens[4:8].tobytes(), tokens[8:12].tobytes()]
    assert block_contents(tokens, 4, 1, 2) == contents[1:2]
    assert block_contents(tokens, 4, 2, 2) == []


def test_zero_token_ids_count() -> None:
    assert block_contents(array("i", [0] * 8), 4, 0, 2) == [bytes(16)] * 2
    assert block_contents(array("i", [7, 0, 0, 0, 7, 0, 0, 0]), 4, 0, 2) == [array("i", [7, 0, 0, 0]).tobytes()] * 2


@given(st.lists(st.integers(0, 2**31 - 1), max_size=60), st.integers(1, 5), st.data())
def test_contents_in_pieces_equal_contents_at_once(tokens: list[int], size: int, data: st.DataObject) -> None:
    ids = array("i", tokens)
    count = len(tokens) // size
    cut = data.draw(st.integers(0, count))
    assert block_contents(ids, size, 0, cut) + block_contents(ids, size, cut, count) == block_contents(
        ids, size, 0, count
    )


def test_media_tell_equal_placeholder_tokens_apart() -> None:
    tokens = array("i", [1, 2, 9, 9, 9, 9, 9, 3, 4, 5, 6, 7])
    plain = block_contents(tokens, 4, 0, 3)
    one = block_contents(tokens, 4, 0, 3, [(2, 5, b"picture one")])
    two = block_contents(tokens, 4, 0, 3, [(2, 5, b"picture two")])
    moved = block_contents(tokens, 4, 0, 3, [(1, 6, b"picture one")])
    assert [a == b for a, b in zip(plain, one, strict=True)] == [False, False, True]
    assert len({c[1] for c in (plain, one, two, moved)}) == 4
    assert block_contents(tokens, 4, 1, 3, [(2, 5, b"picture one")]) == one[1:]


SHORT = st.one_of(st.none(), st.text(alphabet="a\0+-", max_size=4))


@given(SHORT, SHORT, SHORT, SHORT)
def test_salt_and_adapter_never_run_into_each_other(a: str | None, b: str | None, c: str | None, d: str | None) -> None:
    assert (root_content(salt=a, adapter=b) == root_content(salt=c, adapter=d)) == ((a, b) == (c, d))


def test_a_plain_request_has_an_empty_root() -> None:
    assert root_content() == b""
    assert root_content(salt="") != b""


# -- nodes ---------------------------------------------------------------------------------------------------------


def test_equal_prefixes_have_one_node_and_others_have_another() -> None:
    _, prefixes = empty()
    first = extend(prefixes, A, B, C)
    assert extend(prefixes, A, B, D)[:2] == first[:2]
    other = extend(prefixes, B, B, C)
    assert not set(other) & set(first)
    assert prefixes.follow(PLAIN_ROOT, [A, B, C, D]) == first
    assert prefixes.follow(PLAIN_ROOT, [A, C]) == first[:1]
    assert prefixes.follow(PLAIN_ROOT, [C]) == []
    assert prefixes.follow(first[0], [B]) == [first[1]]


def test_roots_keep_requests_apart() -> None:
    _, prefixes = empty()
    salted = root_content(salt="tenant")
    assert prefixes.root(salted) == NO_NODE
    first = extend(prefixes, A, B)
    second = extend(prefixes, A, B, root=salted)
    assert not set(first) & set(second)
    assert prefixes.root(b"") == PLAIN_ROOT
    assert prefixes.follow(prefixes.root(salted), [A, B]) == second


def test_a_node_lives_while_something_keeps_it() -> None:
    pool, prefixes = empty()
    nodes = extend(prefixes, A, B, C)
    blocks = pool.take(2)
    prefixes.store(blocks, nodes[:2], 0)
    assert prefixes.num_nodes == 4
    prefixes.release(nodes[2])
    assert prefixes.follow(PLAIN_ROOT, [A, B, C]) == nodes[:2]
    pool.free(blocks[::-1])
    assert prefixes.follow(PLAIN_ROOT, [A, B, C]) == nodes[:2]
    prefixes.check_integrity([])
    generation = prefixes.generation
    pool.take(pool.num_available)
    assert prefixes.num_nodes == 1
    assert prefixes.generation > generation
    prefixes.check_integrity([])


def test_a_longer_prefix_keeps_the_shorter_ones_known() -> None:
    """A windowed group caches the end of a prefix only; the way to it must stay known."""
    pool, prefixes = empty()
    nodes = extend(prefixes, A, B, C)
    prefixes.store(pool.take(1), nodes[2:], 0)
    prefixes.release(nodes[2])
    assert prefixes.follow(PLAIN_ROOT, [A, B, C]) == nodes
    pool.forget([1])
    assert prefixes.num_nodes == 1


def test_nodes_are_used_again() -> None:
    _, prefixes = empty()
    for _ in range(50):
        nodes = extend(prefixes, A, B, C)
        assert max(nodes) < 8
        prefixes.release(nodes[-1])
    prefixes.check_integrity([])


def test_extending_moves_the_hold() -> None:
    _, prefixes = empty()
    nodes = extend(prefixes, A)
    more = prefixes.extend(nodes[-1], [B, C])
    prefixes.check_integrity([more[-1]])
    assert prefixes.extend(more[-1], []) == []
    prefixes.check_integrity([more[-1]])
    prefixes.release(more[-1])
    assert prefixes.num_nodes == 1


def test_integrity_finds_a_lost_hold() -> None:
    _, prefixes = empty()
    nodes = extend(prefixes, A)
    with pytest.raises(InvariantError, match="count other holders"):
        prefixes.check_integrity([])
    prefixes.check_integrity(nodes)


# -- blocks --------------------------------------------------------------------------------------------------------


def test_groups_cache_and_evict_apart() -> None:
    pool, prefixes = empty(num_groups=2)
    nodes = extend(prefixes, A, B)
    prefixes.store([*pool.take(2)], nodes, 0)
    prefixes.store([*pool.take(1)], nodes[1:], 1)
    assert [prefixes.blocks(nodes, group) for group in (0, 1)] == [[1, 2], [0, 3]]
    assert prefixes.block(nodes[1], 1) == 3
    assert list(prefixes.cached_from_the_end(nodes, (0,))) == [True, True]
    assert list(prefixes.cached_from_the_end(nodes, (0, 1))) == [True, False]
    pool.forget([2])
    assert [prefixes.blocks(nodes, group) for group in (0, 1)] == [[1, 0], [0, 3]]
    prefixes.check_integrity(nodes[1:])


def test_the_second_block_of_a_prefix_takes_over() -> None:
    pool, prefixes = empty()
    nodes = extend(prefixes, A)
    prefixes.store(pool.take(1), nodes, 0)
    prefixes.store(pool.take(1), nodes, 0)
    prefixes.check_integrity(nodes)
    assert prefixes.blocks(nodes, 0) == [1]
    pool.forget([1])
    assert prefixes.blocks(nodes, 0) == [2]
    prefixes.release(nodes[0])
    prefixes.check_integrity([])
    pool.forget([2])
    assert prefixes.num_nodes == 1


class Colliding(bytes):
    """Contents under the weakest digest there is: every one has the same hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8))
def test_a_deliberately_weak_digest_hands_nobody_anothers_prefix(sequences: list[list[int]]) -> None:
    """Nodes are equal exactly where whole prefixes are, however many contents collide."""
    _, prefixes = empty()
    seen: dict[tuple[int, ...], int] = {}
    for sequence in sequences:
        contents: list[Any] = [Colliding(token.to_bytes(4, "little")) for token in sequence]
        for length, node in enumerate(extend(prefixes, *contents), 1):
            assert seen.setdefault(tuple(sequence[:length]), node) == node
    assert len(set(seen.values())) == len(seen)
    assert len({hash(content) for content in (Colliding(b"x"), Colliding(b"y"))}) == 1


def test_a_long_prompt_is_hashed_in_well_under_a_third_of_a_millisecond() -> None:
    """8,192 tokens in blocks of 16, made known and found again; the best of some runs, as others use the machine."""
    tokens = [array("i", range(start, start + 8192)) for start in range(0, 40 * 8192, 8192)]
    _, prefixes = empty()
    best = {"learn": 1.0, "find": 1.0}
    for ids in tokens:
        root = prefixes.hold_root(b"")
        started = time.thread_time()
        nodes = prefixes.extend(root, block_contents(ids, 16, 0, 512))
        best["learn"] = min(best["learn"], time.thread_time() - started)
        started = time.thread_time()
        found = prefixes.follow(root, block_contents(ids, 16, 0, 512))
        best["find"] = min(best["find"], time.thread_time() - started)
        assert found == nodes
    assert best["learn"] < 0.3e-3, best
    assert best["find"] < 0.3e-3, best
