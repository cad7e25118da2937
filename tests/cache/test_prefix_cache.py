from __future__ import annotations

import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache import prefix_cache
from octavo.cache.block_pool import BlockPool
from octavo.cache.contents import BlockContents, block_contents, root_content
from octavo.cache.flat_array import Ids, view
from octavo.cache.prefix_cache import NO_NODE, PLAIN_ROOT, PrefixCache
from octavo.errors import InvariantError
from tests.cache.build import ids

A, B, C, D = b"aaaa", b"bbbb", b"cccc", b"dddd"


def empty(num_groups: int = 1) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(100)
    return pool, PrefixCache(pool, num_groups=num_groups)


def joined(*contents: bytes) -> BlockContents:
    return BlockContents(b"".join(contents), 4)


def extend(prefixes: PrefixCache, *contents: bytes, root: bytes = b"") -> Ids:
    """Nodes of `contents` under a root; the last one stays held."""
    return prefixes.extend(prefixes.hold_root(root), joined(*contents))


# -- nodes ---------------------------------------------------------------------------------------------------------


def test_equal_prefixes_have_one_node_and_others_have_another() -> None:
    _, prefixes = empty()
    first = extend(prefixes, A, B, C)
    assert extend(prefixes, A, B, D)[:2] == first[:2]
    other = extend(prefixes, B, B, C)
    assert not set(other) & set(first)
    assert prefixes.follow(PLAIN_ROOT, joined(A, B, C, D)) == first
    assert prefixes.follow(PLAIN_ROOT, joined(A, C)) == first[:1]
    assert prefixes.follow(PLAIN_ROOT, joined(C)).tolist() == []
    assert prefixes.follow(first[0], joined(B)) == first[1:2]


def test_roots_keep_requests_apart() -> None:
    _, prefixes = empty()
    salted = root_content(salt="tenant")
    assert prefixes.root(salted) == NO_NODE
    first = extend(prefixes, A, B)
    second = extend(prefixes, A, B, root=salted)
    assert not set(first) & set(second)
    assert prefixes.root(b"") == PLAIN_ROOT
    assert prefixes.follow(prefixes.root(salted), joined(A, B)) == second


def test_a_node_lives_while_something_keeps_it() -> None:
    pool, prefixes = empty()
    nodes = extend(prefixes, A, B, C)
    blocks = pool.take(2)
    prefixes.store(blocks, nodes[:2], 0)
    assert prefixes.num_nodes == 4
    prefixes.release(nodes[2])
    assert prefixes.follow(PLAIN_ROOT, joined(A, B, C)) == nodes[:2]
    pool.free(blocks[::-1])
    assert prefixes.follow(PLAIN_ROOT, joined(A, B, C)) == nodes[:2]
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
    assert prefixes.follow(PLAIN_ROOT, joined(A, B, C)) == nodes
    pool.forget(ids([1]))
    assert prefixes.num_nodes == 1


def test_nodes_are_used_again() -> None:
    _, prefixes = empty()
    for _ in range(50):
        nodes = extend(prefixes, A, B, C)
        assert max(nodes) < 8
        prefixes.release(nodes[-1])
    prefixes.check_integrity([])


def test_a_block_at_a_time_gives_the_nodes_of_all_at_once() -> None:
    """Enough of them that every array has to grow in between."""
    pool, prefixes = empty(num_groups=2)
    blocks = [place.to_bytes(4, "little") for place in range(90)]
    root = prefixes.hold_root(b"")
    node, nodes = root, []
    for place, tokens in enumerate(blocks):
        node = prefixes.extend_by_one(node, tokens)
        nodes.append(node)
        prefixes.store_one(pool.take_one(), node, place % 2)
        prefixes.check_integrity([node])
    assert prefixes.follow(root, joined(*blocks)).tolist() == nodes
    assert [prefixes.block(known, place % 2) for place, known in enumerate(nodes)] == list(range(1, 91))
    # Another request goes on from the middle: it meets what is known, then forks.
    prefixes.hold(nodes[3])
    assert prefixes.extend_by_one(nodes[3], blocks[4]) == nodes[4]
    fork = prefixes.extend_by_one(nodes[4], A)
    assert fork not in nodes
    prefixes.check_integrity([node, fork])
    assert prefixes.follow(root, joined(*blocks)).tolist() == nodes


def test_extending_moves_the_hold() -> None:
    _, prefixes = empty()
    nodes = extend(prefixes, A)
    more = prefixes.extend(nodes[-1], joined(B, C))
    prefixes.check_integrity([more[-1]])
    assert prefixes.extend(more[-1], joined()).tolist() == []
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
    prefixes.store(pool.take(2), nodes, 0)
    prefixes.store(pool.take(1), nodes[1:], 1)
    assert [prefixes.blocks(view(nodes), group).tolist() for group in (0, 1)] == [[1, 2], [0, 3]]
    assert prefixes.block(nodes[1], 1) == 3
    assert prefixes.cached(view(nodes), (0,)).tolist() == [True, True]
    assert prefixes.cached(view(nodes), (0, 1)).tolist() == [False, True]
    assert [prefixes.num_cached(view(nodes), groups) for groups in ((0,), (0, 1))] == [2, 0]
    pool.forget(ids([2]))
    assert [prefixes.blocks(view(nodes), group).tolist() for group in (0, 1)] == [[1, 0], [0, 3]]
    prefixes.check_integrity(nodes[1:])


def test_the_second_block_of_a_prefix_takes_over() -> None:
    pool, prefixes = empty()
    nodes = extend(prefixes, A)
    prefixes.store(pool.take(1), nodes, 0)
    prefixes.store(pool.take(1), nodes, 0)
    prefixes.check_integrity(nodes)
    assert prefixes.blocks(view(nodes), 0).tolist() == [1]
    pool.forget(ids([1]))
    assert prefixes.blocks(view(nodes), 0).tolist() == [2]
    prefixes.release(nodes[0])
    prefixes.check_integrity([])
    pool.forget(ids([2]))
    assert prefixes.num_nodes == 1


class Colliding(bytes):
    """Contents under the weakest digest there is: every one has the same hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8))
def test_a_deliberately_weak_digest_hands_nobody_anothers_prefix(sequences: list[list[int]]) -> None:
    """Nodes are equal exactly where whole prefixes are, however many contents collide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "span_key", lambda before, head: (before, Colliding(head)))
        _, prefixes = empty()
        seen: dict[tuple[int, ...], int] = {}
        for sequence in sequences:
            extend(prefixes, *(token.to_bytes(4, "little") for token in sequence))
        for sequence in sequences:
            contents = joined(*(token.to_bytes(4, "little") for token in sequence))
            for length, node in enumerate(prefixes.follow(PLAIN_ROOT, contents), 1):
                assert seen.setdefault(tuple(sequence[:length]), node) == node
        assert len(set(seen.values())) == len(seen)
        assert {hash(head) for _, head in prefixes._found} == {7}


def test_a_long_prompt_is_hashed_in_well_under_a_third_of_a_millisecond() -> None:
    """8,192 tokens in blocks of 16, made known and found again; the best of some runs, as others use the machine."""
    tokens = [array("i", range(start, start + 8192)) for start in range(0, 40 * 8192, 8192)]
    _, prefixes = empty()
    best = {"learn": 1.0, "find": 1.0}
    for own in tokens:
        root = prefixes.hold_root(b"")
        started = time.thread_time()
        nodes = prefixes.extend(root, block_contents(own, 16, 0, 512))
        best["learn"] = min(best["learn"], time.thread_time() - started)
        started = time.thread_time()
        found = prefixes.follow(root, block_contents(own, 16, 0, 512))
        best["find"] = min(best["find"], time.thread_time() - started)
        assert found == nodes
    assert best["learn"] < 0.3e-3, best
    assert best["find"] < 0.3e-3, best
