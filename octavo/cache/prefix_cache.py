"""Which prefixes are known, and under which key of the pool each of them is cached, group by group.

A prefix is a whole number of hash blocks (`hash_block_size` tokens each). Every known prefix has a small number, its
*node*. Nodes that follow each other without a fork lie in one *span*, which has the token ids of all of them side by
side: a radix tree, whose edges are the spans.

    span 1 (root)  span 2: 512 blocks of a shared prompt           span 3: 40 blocks of one request's question
    [ node 1 ] ──> [ 2 | 3 | 4 | ........................ ] ──┬──> [ 514 | 515 | ... ]
                                                              └──> [ 554 | 555 | ... ]   span 4: of another's

The span after a fork is found in a dict under (number of the span before, content of the span's first block): Python's
keyed hash (SipHash, random key per process) only finds the candidate, after which the dict compares the content itself.
The rest of the span is compared as bytes. What holds for a whole request (cache salt, adapter) is the content of the
root. So every token of a prefix is compared, and no collision can hand a request another prefix's cache.

Node n in group g has key `n * num_groups + g` in the pool's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.cache.block_pool import BlockPool
from octavo.cache.contents import BlockContents
from octavo.cache.flat_array import MANY, Ids, IdView, grown, ids_from, no_ids, view, zeros
from octavo.errors import InvariantError

NO_NODE = 0
"""Node of no prefix."""

PLAIN_ROOT = 1
"""Root of requests without salt or adapter."""

NO_SPAN = 0
"""What roots stand behind."""


def span_key(before: int, head: bytes) -> tuple[int, bytes]:
    """Under what a span is found: number of the span before it, content of its first block."""
    return before, head


class Span:
    """Prefixes that extend each other by one block, with no fork in between.

    Owns: their nodes and their token ids.
    """

    __slots__ = ("before", "depth", "head", "nodes", "num_after", "number", "tokens")

    def __init__(self, number: int, before: Span | None, head: bytes, nodes: Ids, tokens: bytearray) -> None:
        self.number = number
        self.before = before
        """The span that this one follows; None for a root."""
        self.depth: int = 0 if before is None else before.depth + len(before.nodes)
        """Nodes before its first one, up to the root."""
        self.head = head
        """Content of the first block."""
        self.nodes: Ids = nodes
        self.tokens = tokens
        """Of all blocks; none for a root."""
        self.num_after = 0
        """Spans that follow."""

    @property
    def key(self) -> tuple[int, bytes]:
        """Under what it is found."""
        return span_key(NO_SPAN if self.before is None else self.before.number, self.head)


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
        self._spans: list[Span | None] = [None]
        """By number; None where the number is unused."""
        self._unused_spans: list[int] = []
        self._found: dict[tuple[int, bytes], Span] = {}
        """By `Span.key`."""
        # Of each node: holders (groups that cache it, and holds by requests), its span, the nodes before it.
        self._holders, self._holders_view = zeros(64)
        self._span_of, self._span_of_view = zeros(64)
        self._depths, self._depths_view = zeros(64)
        self._num_numbered = 1
        """Nodes ever numbered, `NO_NODE` included."""
        self._unused = no_ids()
        self.generation = 0
        """Grows whenever a cached prefix may have been lost: what was looked up in another generation may be void."""
        pool.index_for(len(self._holders) * num_groups)
        self._add_root(b"")
        self.hold(PLAIN_ROOT)

    @property
    def num_nodes(self) -> int:
        """Known prefixes, roots included."""
        return self._num_numbered - 1 - len(self._unused)

    def root(self, content: bytes) -> int:
        """The known root of that content, or `NO_NODE`."""
        if not content:
            return PLAIN_ROOT
        span = self._found.get(span_key(NO_SPAN, content))
        return NO_NODE if span is None else span.nodes[0]

    def follow(self, node: int, contents: BlockContents) -> Ids:
        """The known nodes of the prefixes that extend `node` by one, two, ... of `contents`, to the first unknown."""
        return self._walk(node, contents)[0]

    def extend(self, node: int, contents: BlockContents) -> Ids:
        """As `follow`, but unknown prefixes become known. Moves one hold from `node` to the last node returned."""
        nodes, span, place = self._walk(node, contents)
        if len(nodes) < len(contents):
            nodes += self._add(span, place, contents, len(nodes))
        if nodes:
            self._holders[nodes[-1]] += 1
            self.release(node)
        return nodes

    def extend_by_one(self, node: int, tokens: bytes) -> int:
        """As `extend`, by a block without media. Costs least where `node` is the end of all known prefixes."""
        span = self._span(node)
        if span.nodes[-1] != node or span.num_after or span.before is None:
            return self.extend(node, BlockContents(tokens, len(tokens)))[0]
        new = self._unused.pop() if self._unused else self._number(1)[0]
        self._span_of[new] = span.number
        self._depths[new] = span.depth + len(span.nodes)
        span.nodes.append(new)
        span.tokens += tokens
        self._holders[new] = 1
        self._holders[node] -= 1
        return new

    def hold_root(self, content: bytes) -> int:
        """The root of that content, made known if it is not, with one hold more."""
        node = self.root(content) or self._add_root(content)
        self.hold(node)
        return node

    def hold(self, node: int) -> None:
        """Keep `node` and all it extends known until `release`."""
        self._holders[node] += 1

    def release(self, node: int) -> None:
        """End a hold. Nodes that nothing keeps any more are forgotten."""
        holders = self._holders
        holders[node] -= 1
        if not holders[node]:
            self._trim(self._spans[self._span_of[node]])

    def store(self, blocks: Ids, nodes: Ids, group: int) -> None:
        """Let each of `blocks` be found under the node at the same place, in `group`. The nodes differ."""
        num_groups, holders = self.num_groups, self._holders
        if len(nodes) < MANY:
            keys = nodes if num_groups == 1 else [node * num_groups + group for node in nodes]
            for key in self._pool.insert(blocks, keys):
                holders[key // num_groups] += 1
            return
        new = np.asarray(self._pool.insert(blocks, self._keys(view(nodes), group)))
        self._holders_view[new // num_groups] += 1

    def store_one(self, block: int, node: int, group: int) -> None:
        """As `store`."""
        if self._pool.insert_one(block, node * self.num_groups + group):
            self._holders[node] += 1

    def block(self, node: int, group: int) -> int:
        """The block cached for `node` in `group`, or the null block."""
        return self._pool.find(node * self.num_groups + group)

    def blocks(self, nodes: IdView, group: int) -> npt.NDArray[np.int32]:
        """The block cached for each of `nodes` in `group`, the null block where there is none."""
        return self._pool.find_many(self._keys(nodes, group))

    def cached(self, nodes: IdView, groups: Sequence[int]) -> npt.NDArray[np.bool_]:
        """For each of `nodes`: whether all `groups` have a block cached for it."""
        found: npt.NDArray[np.bool_] = self.blocks(nodes, groups[0]) != 0
        for group in groups[1:]:
            found &= self.blocks(nodes, group) != 0
        return found

    def num_cached(self, nodes: IdView, groups: Sequence[int]) -> int:
        """How many of `nodes`, from the first on, all `groups` have a block cached for."""
        if not len(nodes):
            return 0
        found = self.cached(nodes, groups)
        return len(found) if found.all() else int(found.argmin())

    def vacate(self, keys: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """The pool lost these keys: forget the nodes that only they kept."""
        self.generation += 1
        num_groups, holders = self.num_groups, self._holders
        spans: list[int] = []
        if len(keys) < MANY:
            for key in keys:
                node = key // num_groups
                holders[node] -= 1
                if not holders[node]:
                    spans.append(self._span_of[node])
        else:
            lost, groups = np.divmod(np.asarray(keys), num_groups) if num_groups > 1 else (np.asarray(keys), None)
            for group in range(num_groups):  # A node may be among them once in each group.
                self._holders_view[lost if groups is None else lost[groups == group]] -= 1
            numbers = self._span_of_view[lost[self._holders_view[lost] == 0]]
            ends = np.flatnonzero(numbers[1:] != numbers[:-1])
            spans = [*numbers[ends].tolist(), *numbers[-1:].tolist()]
        for number in spans:
            self._trim(self._spans[number])

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise `InvariantError` unless holders, spans and index agree, where requests hold the nodes `held`."""
        expected = [0] * self._num_numbered
        cached = (key // self.num_groups for key, block in enumerate(self._pool.index_for(0)) if block)
        for node in chain((PLAIN_ROOT,), held, cached):
            expected[node] += 1
        wrong = [node for node, count in enumerate(expected) if self._holders[node] != count]
        if wrong:
            raise InvariantError(f"nodes {wrong[:8]} count other holders than they have")
        spans = [span for span in self._spans if span is not None]
        if {span.key: span for span in spans} != self._found or len(spans) != len(self._found):
            raise InvariantError("a span is not found under its content")
        for span in spans:
            self._check_span(span, sum(1 for other in spans if other.before is span))
        living = [node for span in spans for node in span.nodes]
        if sorted([*living, *self._unused]) != list(range(1, self._num_numbered)):
            raise InvariantError("a node was lost, or stands in two places")

    def _check_span(self, span: Span, num_after: int) -> None:
        number, nodes = span.number, span.nodes
        if self._spans[number] is not span or span.num_after != num_after or not nodes:
            raise InvariantError(f"span {number} is empty, or counts others after it than there are")
        if not num_after and not self._holders[nodes[-1]]:
            raise InvariantError(f"node {nodes[-1]} is kept by nothing")
        depth = 0 if span.before is None else span.before.depth + len(span.before.nodes)
        places = [(number, depth + place) for place in range(len(nodes))]
        if [(self._span_of[node], self._depths[node]) for node in nodes] != places or span.depth != depth:
            raise InvariantError(f"a node of span {number} does not know its place")
        if not span.head.startswith(bytes(span.tokens[: len(span.tokens) // len(nodes)])):
            raise InvariantError(f"span {number} does not know its own content")

    def _keys(self, nodes: IdView, group: int) -> npt.NDArray[Any]:
        return nodes if self.num_groups == 1 else nodes * self.num_groups + group

    def _walk(self, node: int, contents: BlockContents) -> tuple[Ids, Span, int]:
        """(what `follow` returns, the span of its last node, the place in that span behind it)."""
        span = self._span(node)
        place = self._depths[node] - span.depth + 1
        nodes = no_ids()
        num_blocks = contents.num_blocks
        while True:
            if place < len(span.nodes):
                num_common = contents.num_common(len(nodes), span.tokens, place)
                nodes += span.nodes[place : place + num_common]
                place += num_common
            if place < len(span.nodes) or len(nodes) == num_blocks or not span.num_after:
                return nodes, span, place
            after = self._found.get(span_key(span.number, contents.block(len(nodes))))
            if after is None:
                return nodes, span, place
            span, place = after, 1
            nodes.append(span.nodes[0])

    def _span(self, node: int) -> Span:
        span = self._spans[self._span_of[node]]
        if span is None:
            raise InvariantError(f"node {node} is not known")
        return span

    def _add(self, span: Span, place: int, contents: BlockContents, first: int) -> Ids:
        """Make prefixes known: `contents` from block `first` on, behind the first `place` nodes of `span`."""
        if place < len(span.nodes):
            span = self._split(span, place)
        nodes = self._number(len(contents) - first)
        depth = span.depth + place
        self._depths_view[view(nodes)] = np.arange(depth, depth + len(nodes))
        size = contents.block_bytes
        for start, stop in contents.runs(first):
            own = nodes[start - first : stop - first]
            tokens = contents.token_bytes[start * size : stop * size]
            if span.before is not None and not span.num_after and start not in contents.digests:
                span.nodes += own
                span.tokens += tokens
            else:
                span = self._add_span(span, contents.block(start), own, bytearray(tokens))
            self._span_of_view[view(own)] = span.number
        return nodes

    def _add_root(self, content: bytes) -> int:
        nodes = self._number(1)
        self._depths[nodes[0]] = 0
        self._span_of[nodes[0]] = self._add_span(None, content, nodes, bytearray()).number
        return nodes[0]

    def _add_span(self, before: Span | None, head: bytes, nodes: Ids, tokens: bytearray) -> Span:
        if self._unused_spans:
            number = self._unused_spans.pop()
        else:
            number = len(self._spans)
            self._spans.append(None)
        if before is not None:
            before.num_after += 1
        span = Span(number, before, head, nodes, tokens)
        self._spans[number] = self._found[span.key] = span
        return span

    def _split(self, span: Span, place: int) -> Span:
        """Fork at `place`: the nodes before it become a span of their own, which is returned."""
        cut = len(span.tokens) // len(span.nodes) * place
        head, before = span.head, span.before
        if before is not None:
            before.num_after -= 1
        front = self._add_span(before, head, span.nodes[:place], span.tokens[:cut])
        front.num_after = 1
        self._span_of_view[view(front.nodes)] = front.number
        span.head = bytes(span.tokens[cut : cut + cut // place])
        span.before = front
        span.depth += place
        del span.nodes[:place], span.tokens[:cut]
        self._found[span.key] = span
        return front

    def _number(self, count: int) -> Ids:
        """Numbers for `count` new nodes."""
        unused = self._unused
        num_again = min(count, len(unused))
        nodes = unused[len(unused) - num_again :]
        del unused[len(unused) - num_again :]
        if num_again < count:
            start = self._num_numbered
            self._num_numbered = stop = start + count - num_again
            if stop - start == 1:
                nodes.append(start)
            else:
                nodes += ids_from(start, stop)
            if stop > len(self._holders):
                self._holders, self._holders_view = grown(self._holders_view, stop)
                self._span_of, self._span_of_view = grown(self._span_of_view, stop)
                self._depths, self._depths_view = grown(self._depths_view, stop)
                self._pool.index_for(len(self._holders) * self.num_groups)
        return nodes

    def _trim(self, span: Span | None) -> None:
        """Forget the nodes at the end of `span` that nothing keeps, then those at the end of the spans before it."""
        while span is not None and not span.num_after:
            nodes, tokens = span.nodes, span.tokens
            num_kept = self._num_kept(nodes)
            if num_kept == len(nodes):
                return
            self._unused += nodes[num_kept:]
            if num_kept:
                del tokens[len(tokens) // len(nodes) * num_kept :]
                del nodes[num_kept:]
                return
            del self._found[span.key]
            self._spans[span.number] = None
            self._unused_spans.append(span.number)
            span = span.before
            if span is not None:
                span.num_after -= 1

    def _num_kept(self, nodes: Ids) -> int:
        """How many of `nodes` are left without those at the end that have no holder. Looks at a few times as many."""
        holders = self._holders
        stop = len(nodes)
        while stop and not holders[nodes[stop - 1]]:
            stop -= 1
            if len(nodes) - stop == MANY:
                break
        else:
            return stop
        step = 4 * MANY
        seen = view(nodes)
        while stop:
            first = max(0, stop - step)
            kept = np.flatnonzero(self._holders_view[seen[first:stop]])
            if len(kept):
                return first + int(kept[-1]) + 1
            stop = first
            step *= 4
        return 0
