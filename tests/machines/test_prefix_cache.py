"""`PrefixCache` beside the obvious one: a set of sequences, each of them kept by whatever is longer, cached or held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.cache import block_pool, prefix_cache
from octavo.cache.block_pool import BlockPool
from octavo.cache.contents import BlockContents
from octavo.cache.flat_array import Ids, view
from octavo.cache.prefix_cache import NO_NODE, PrefixCache, Span
from octavo.errors import InvariantError
from tests.cache.build import ids

NUM_BLOCKS = 40
Path = tuple[bytes, ...]
"""A root's content, then those of its blocks, the digests of media in them."""

ROOTS = st.sampled_from([b"", b"", b"salt"])
BLOCK = st.tuples(st.sampled_from([b"aaaa", b"bbbb"]), st.sampled_from([b"", b"", b"", b"", b"image"]))
BLOCKS = st.lists(BLOCK, max_size=9)


def contents_of(blocks: list[tuple[bytes, bytes]]) -> BlockContents:
    digests = {place: digest for place, (_, digest) in enumerate(blocks) if digest}
    return BlockContents(b"".join(tokens for tokens, _ in blocks), 4, digests)


class PrefixMachine(RuleBasedStateMachine):
    """Prefixes are learned, held, cached in two groups, let go and evicted, in any order."""

    many = prefix_cache.MANY

    @initialize(num_groups=st.sampled_from([1, 2, 3]))
    def build(self, num_groups: int) -> None:
        self._many = prefix_cache.MANY
        prefix_cache.MANY = block_pool.MANY = self.many
        self.pool = BlockPool(NUM_BLOCKS)
        self.real = PrefixCache(self.pool, num_groups=num_groups)
        self.num_groups = num_groups
        self.holds: list[tuple[Path, list[tuple[bytes, bytes]], int]] = []
        """(prefix, its blocks, its node) of each hold."""
        self.cached: dict[tuple[Path, int], list[int]] = {}
        """Blocks by prefix and group, the one that was cached first in front."""

    def teardown(self) -> None:
        if hasattr(self, "_many"):
            prefix_cache.MANY = block_pool.MANY = self._many

    def known(self) -> set[Path]:
        kept = [path for path, _, _ in self.holds] + [path for path, _ in self.cached]
        return {(b"",)} | {path[:length] for path in kept for length in range(1, len(path) + 1)}

    @rule(root=ROOTS, blocks=BLOCKS)
    def follow(self, root: bytes, blocks: list[tuple[bytes, bytes]]) -> None:
        known, node = self.known(), self.real.root(root)
        assert (node != NO_NODE) == ((root,) in known)
        if node:
            path = (root, *(tokens + digest for tokens, digest in blocks))
            num_known = sum(path[: length + 1] in known for length in range(1, len(path)))
            assert len(self.real.follow(node, contents_of(blocks))) == num_known

    @rule(root=ROOTS, blocks=BLOCKS, cut=st.integers(0, 9))
    def learn(self, root: bytes, blocks: list[tuple[bytes, bytes]], cut: int) -> None:
        """In one or two pieces, as chunks of a prompt do."""
        node = self.real.hold_root(root)
        for piece in (blocks[:cut], blocks[cut:]):
            nodes = self.real.extend(node, contents_of(piece))
            assert len(nodes) == len(piece)
            node = nodes[-1] if nodes else node
        self.holds.append(((root, *(tokens + digest for tokens, digest in blocks)), blocks, node))

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), more=BLOCKS)
    def go_on(self, data: st.DataObject, more: list[tuple[bytes, bytes]]) -> None:
        """A request that holds a prefix gets further; others may have gone on from there already."""
        index = data.draw(st.integers(0, len(self.holds) - 1))
        path, blocks, node = self.holds[index]
        if len(more) == 1 and not more[0][1]:
            nodes = ids([self.real.extend_by_one(node, more[0][0])])
        else:
            nodes = self.real.extend(node, contents_of(more))
        longer = (*path, *(tokens + digest for tokens, digest in more))
        self.holds[index] = (longer, blocks + more, nodes[-1] if nodes else node)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        _, _, node = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        self.real.release(node)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        """Some of a held prefix's blocks enter the cache in some groups; then nobody may need them any more."""
        path, blocks, _ = data.draw(st.sampled_from(self.holds))
        places = sorted(data.draw(st.sets(st.integers(0, 8), min_size=1)) & set(range(len(blocks))))
        for group in data.draw(st.lists(st.integers(0, self.num_groups - 1), unique=True, min_size=1)):
            if not places or len(places) > self.pool.num_available:
                return
            taken = self.pool.take(len(places))
            self._lost(taken.tolist())
            nodes = self._nodes(path[0], blocks)
            if len(places) == 1:
                self.real.store_one(taken[0], nodes[places[0]], group)
            else:
                self.real.store(taken, ids(nodes[place] for place in places), group)
            for block, place in zip(taken.tolist(), places, strict=True):
                self.cached.setdefault((path[: place + 2], group), []).append(block)
            if data.draw(st.sampled_from([True, True, False])):
                self.pool.free(taken)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        held = [block for blocks in self.cached.values() for block in blocks if self.pool.references(block)]
        if held:
            gone = data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1))
            self.pool.forget(ids(gone))
            self._lost(gone)
            self.pool.free(ids(gone))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        most = self.pool.num_available
        taken = self.pool.take(data.draw(st.sampled_from([most, most // 2, most // 3])))
        self._lost(taken.tolist())
        self.pool.free(taken)

    def _lost(self, blocks: list[int]) -> None:
        for key, owners in list(self.cached.items()):
            self.cached[key] = [block for block in owners if block not in blocks]
            if not self.cached[key]:
                del self.cached[key]

    def _nodes(self, root: bytes, blocks: list[tuple[bytes, bytes]]) -> Ids:
        return self.real.follow(self.real.root(root), contents_of(blocks))

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "real"):
            return
        self.real.check_integrity(node for _, _, node in self.holds)
        known = self.known()
        assert self.real.num_nodes == len(known)
        held = Counter(path for path, _, _ in self.holds)
        for path, blocks, node in self.holds:
            nodes = self._nodes(path[0], blocks)
            assert held[path] and (nodes[-1] if nodes else self.real.root(path[0])) == node
            for group in range(self.num_groups):
                expected = [self.cached.get((path[: place + 2], group), [0])[0] for place in range(len(blocks))]
                assert self.real.blocks(view(nodes), group).tolist() == expected


class BulkPrefixMachine(PrefixMachine):
    """The same with the pass for long runs taken from one node on."""

    many = 1


QUICK = settings(max_examples=60, stateful_step_count=25, deadline=None, database=None)
TestPrefixes = PrefixMachine.TestCase
TestPrefixes.settings = QUICK
TestBulkPrefixes = BulkPrefixMachine.TestCase
TestBulkPrefixes.settings = QUICK


# -- planted bugs: the machine must find each of them --------------------------------------------------------------

Bug = Callable[[pytest.MonkeyPatch], None]


def _split_a_block_late(patch: pytest.MonkeyPatch) -> None:
    right = PrefixCache._split
    patch.setattr(
        PrefixCache, "_split", lambda self, span, place: right(self, span, min(place + 1, len(span.nodes) - 1))
    )


def _trim_a_node_too_many(patch: pytest.MonkeyPatch) -> None:
    right = PrefixCache._num_kept
    patch.setattr(PrefixCache, "_num_kept", lambda self, nodes: max(0, right(self, nodes) - 1))


def _never_trim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "_trim", lambda self, span: None)


def _forget_what_was_before(patch: pytest.MonkeyPatch) -> None:
    """Nodes go, but not those before them that only they kept."""
    right = PrefixCache._trim

    def trim(self: PrefixCache, span: Span | None) -> None:
        before = span.before if span is not None else None
        if before is not None:
            before.num_after += 1
        right(self, span)
        if before is not None:
            before.num_after -= 1

    patch.setattr(PrefixCache, "_trim", trim)


def _ignore_media(patch: pytest.MonkeyPatch) -> None:
    right = BlockContents.num_common

    def num_common(self: BlockContents, place: int, tokens: bytearray, other: int) -> int:
        return right(BlockContents(self.token_bytes, self.block_bytes), place, tokens, other)

    patch.setattr(BlockContents, "num_common", num_common)


def _count_a_node_once(patch: pytest.MonkeyPatch) -> None:
    """Of a node that several groups lose at once, let go of one of them."""
    right = PrefixCache.vacate

    def vacate(self: PrefixCache, keys: list[int]) -> None:
        right(self, list({key // self.num_groups: key for key in keys}.values()))

    patch.setattr(PrefixCache, "vacate", vacate)


BUGS: list[Bug] = [
    _split_a_block_late,
    _trim_a_node_too_many,
    _never_trim,
    _forget_what_was_before,
    _ignore_media,
    _count_a_node_once,
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.__name__.strip("_") for bug in BUGS])
def test_the_machine_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    bug(monkeypatch)
    hunt = settings(
        QUICK,
        max_examples=1000,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises((AssertionError, InvariantError, IndexError, ValueError)):
        run_state_machine_as_test(PrefixMachine, settings=hunt)


@pytest.mark.long
@pytest.mark.parametrize("machine", [PrefixMachine, BulkPrefixMachine])
def test_long_histories(machine: type[PrefixMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(QUICK, max_examples=1000, stateful_step_count=60))
