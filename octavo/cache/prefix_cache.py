"""Which prefixes are known, and under which key of the pool each of them is cached, group by group.

A prefix is a whole number of hash blocks (`hash_block_size` tokens each). Every known prefix has a small number, its
*node*; a node is found by (node of the prefix one block shorter, content of the last block), where the content is the
block's token ids as bytes, followed by the digests of media that overlap it. What holds for a whole request (cache
salt, adapter) is the content of the chain's root.

The look-up is a Python dict: its keyed hash (SipHash, random key per process) only finds the candidates, after which
the dict compares the contents themselves, and the parents are equal by construction. So the chain of nodes compares
every token of the prefix, and no collision can hand a request another prefix's cache.

Node n in group g has key `n * num_groups + g` in the pool's index.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np

from octavo.cache.block_pool import BlockPool
from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK

NO_NODE = 0
"""Node of no prefix: the parent of all roots."""

PLAIN_ROOT = 1
"""Root of requests without salt or adapter."""

TOKEN_BYTES = 4


def root_content(*, salt: str | None = None, adapter: str | None = None) -> bytes:
    """What tells apart requests that must not share blocks at all; empty for a plain request."""
    if salt is None and adapter is None:
        return b""
    parts = [b"-" if text is None else b"+" + text.encode("utf-8", "surrogatepass") for text in (salt, adapter)]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def block_contents(
    token_ids: array[int], block_size: int, first: int, stop: int, media: Sequence[tuple[int, int, bytes]] = ()
) -> list[bytes]:
    """The contents of blocks `first` .. `stop - 1` of `token_ids` (int32).

    Parameters:
        media: (first position, number of positions, digest) of each image or the like; token ids alone do not say
            what stands at these positions.
    """
    data = token_ids[first * block_size : stop * block_size].tobytes()
    size = block_size * TOKEN_BYTES
    contents = [data] if stop - first == 1 else np.frombuffer(data, dtype=f"V{size}").tolist()
    for begin, length, digest in media:
        for block in range(max(first, begin // block_size), min(stop, -(-(begin + length) // block_size))):
            offset = begin - block * block_size
            contents[block - first] += offset.to_bytes(8, "little", signed=True) + digest
    return contents


class PrefixCache:
    """The tree of known prefixes over a pool's index.

    A node lives while a block is cached under it, a longer prefix lives, or somebody holds it; so the number of nodes
    is bounded by what is cached and running, not by what was ever seen.

    Owns: the nodes, and how many holders each has.
    Never: hands out blocks or knows which request uses them.
    """

    def __init__(self, pool: BlockPool, *, num_groups: int) -> None:
        self.num_groups = num_groups
        self._pool = pool
        pool.on_vacant = self.vacate
        self._nodes: dict[tuple[int, bytes], int] = {}
        self._identity: list[tuple[int, bytes] | None] = [None]
        self._holders: list[int] = [1]
        """By node: prefixes one block longer, groups in which it is cached, and holds by requests."""
        self._unused: list[int] = []
        self.generation = 0
        """Grows whenever a cached prefix may have been lost: what was looked up in another generation may be void."""
        if self.hold_root(b"") != PLAIN_ROOT:
            raise InvariantError("the plain root is not the first node")

    @property
    def num_nodes(self) -> int:
        """Known prefixes, roots included."""
        return len(self._nodes)

    def root(self, content: bytes) -> int:
        """The known root of that content, or `NO_NODE`."""
        return self._nodes.get((NO_NODE, content), NO_NODE) if content else PLAIN_ROOT

    def follow(self, node: int, contents: Iterable[bytes]) -> list[int]:
        """The known nodes of the prefixes that extend `node` by one, two, ... of `contents`, to the first unknown."""
        find = self._nodes.get
        nodes = []
        for content in contents:
            child = find((node, content))
            if child is None:
                break
            nodes.append(child)
            node = child
        return nodes

    def extend(self, node: int, contents: Sequence[bytes]) -> list[int]:
        """As `follow`, but unknown prefixes become known. Moves one hold from `node` to the last node returned."""
        nodes = self.follow(node, contents)
        if len(nodes) < len(contents):
            nodes += self._add(nodes[-1] if nodes else node, contents[len(nodes) :])
        if nodes:
            self._holders[nodes[-1]] += 1
            self.release(node)
        return nodes

    def hold_root(self, content: bytes) -> int:
        """The root of that content, made known if it is not, with one hold more."""
        self.hold(NO_NODE)
        return self.extend(NO_NODE, [content])[0]

    def hold(self, node: int) -> None:
        """Keep `node` and all it extends known until `release`."""
        self._holders[node] += 1

    def release(self, node: int) -> None:
        """End a hold. Nodes that nothing keeps any more are forgotten, the longest prefix first."""
        self._holders[node] -= 1
        self._forget((node,))

    def store(self, blocks: Sequence[int], nodes: Sequence[int], group: int) -> None:
        """Let each of `blocks` be found under the node at the same place, in `group`."""
        num_groups, holders = self.num_groups, self._holders
        keys = nodes if num_groups == 1 else [node * num_groups + group for node in nodes]
        new = self._pool.insert(blocks, keys)
        if new is not keys:
            nodes = [key // num_groups for key in new]
        for node in nodes:
            holders[node] += 1

    def block(self, node: int, group: int) -> int:
        """The block cached for `node` in `group`, or the null block."""
        return self._pool.find(node * self.num_groups + group)

    def blocks(self, nodes: Sequence[int], group: int) -> list[int]:
        """The block cached for each of `nodes` in `group`, the null block where there is none."""
        first, num_groups = self._index(), self.num_groups
        return [first[node * num_groups + group] for node in nodes]

    def cached_from_the_end(self, nodes: Sequence[int], groups: Sequence[int]) -> Iterator[bool]:
        """For each of `nodes`, from the last to the first: whether all `groups` have a block cached for it."""
        first, num_groups = self._index(), self.num_groups
        if len(groups) == 1:
            group = groups[0]
            return (first[node * num_groups + group] != NULL_BLOCK for node in reversed(nodes))
        return (all(first[node * num_groups + group] for group in groups) for node in reversed(nodes))

    def vacate(self, keys: Sequence[int]) -> None:
        """The pool lost these keys: forget the nodes that only they kept."""
        self.generation += 1
        num_groups, holders = self.num_groups, self._holders
        nodes = keys if num_groups == 1 else [key // num_groups for key in keys]
        for node in nodes:
            holders[node] -= 1
        self._forget(nodes)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise `InvariantError` unless holders, nodes and index agree, where requests hold the nodes `held`."""
        expected = [0] * len(self._holders)
        expected[NO_NODE] = 1
        for node in (PLAIN_ROOT, *held, *(parent for parent, _ in self._nodes)):
            expected[node] += 1
        for key, block in enumerate(self._pool.index_for(0)):
            if block:
                expected[key // self.num_groups] += 1
        if expected != self._holders:
            wrong = [node for node, count in enumerate(expected) if self._holders[node] != count]
            raise InvariantError(f"nodes {wrong[:8]} count other holders than they have")
        for identity, node in self._nodes.items():
            if self._identity[node] != identity:
                raise InvariantError(f"node {node} does not know its own content")
            if not self._holders[node]:
                raise InvariantError(f"node {node} is kept by nothing")
        if len(self._nodes) + len(self._unused) + 1 != len(self._identity):
            raise InvariantError("a node was lost")

    def _index(self) -> array[int]:
        """The pool's index, with room for every known node."""
        return self._pool.index_for(len(self._identity) * self.num_groups)

    def _add(self, parent: int, contents: Sequence[bytes]) -> list[int]:
        """Make unknown prefixes known: `parent` extended by one, two, ... of `contents`. The last has no holder yet."""
        unused = self._unused
        nodes = unused[-len(contents) :]
        del unused[-len(contents) :]
        num_fresh = len(contents) - len(nodes)
        if num_fresh:
            start = len(self._identity)
            self._identity.extend(repeat(None, num_fresh))
            self._holders.extend(repeat(0, num_fresh))
            nodes.extend(range(start, start + num_fresh))
        identities = list(zip([parent, *nodes[:-1]], contents, strict=True))
        self._nodes.update(zip(identities, nodes, strict=True))
        identity_of, holders = self._identity, self._holders
        for node, identity in zip(nodes, identities, strict=True):
            identity_of[node] = identity
            holders[node] = 1
        holders[nodes[-1]] = 0
        holders[parent] += 1
        return nodes

    def _forget(self, nodes: Iterable[int]) -> None:
        """Forget each of `nodes` that has no holder, then every shorter prefix that only it kept."""
        holders, identity_of, known, unused = self._holders, self._identity, self._nodes, self._unused
        for first in nodes:
            node = first
            while not holders[node]:
                identity = identity_of[node]
                if identity is None:  # Forgotten just now, as a prefix of an earlier one of `nodes`.
                    break
                del known[identity]
                identity_of[node] = None
                unused.append(node)
                node = identity[0]
                holders[node] -= 1
