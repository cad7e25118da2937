"""Who references which block, which block is handed out next, and which block holds which key.

The line of unreferenced blocks, first to be handed out on the left:

    plain blocks (content worthless)      cached blocks (content known by a key)
    newest freed ... ids never used   |   least recently used ... most recently used
    a stack: `_plain`, top = front        a doubly linked list through `_after` and `_before`, block 0 is its anchor

A block in the line loses its key only by being handed out or by `reset`, so plain ones always stand before cached ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise, repeat

import numpy as np

from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK

NO_KEY = 0
"""Key of a block whose content nobody can look up."""

BULK = 64
"""From this many blocks on, one pass of numpy over the same arrays beats a loop (measured: equal at 50 to 90)."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1, in flat integer arrays; block 0 is the null block and never leaves.

    A key is a positive whole number that names a block's content; several blocks may hold equal content and so one key.
    Memory is 32 bytes a block, and 4 bytes for each key up to the largest one used. No operation looks at more blocks
    than it is given or gives.

    Owns: reference counts, the line of unreferenced blocks, the index from key to blocks.
    Never: knows tokens, requests or groups.

    Parameters:
        num_blocks: null block included, at least 1.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise InvariantError(f"a pool of {num_blocks} blocks has no room for the null block")
        self.num_blocks = num_blocks
        self.on_vacant: Callable[[list[int]], None] = _ignore
        """Called with the keys that blocks lost and no other block holds, in the order in which they were lost."""
        self.num_keys_stored = 0
        """Keys given to blocks since the start."""
        self.num_keys_evicted = 0
        """Keys taken from blocks that were handed out anew, since the start."""
        # Each array has a numpy view of the same memory: single blocks go through the array, many through the view.
        self._refs, self._refs_view = _zeros(num_blocks)
        self._after, self._after_view = _zeros(num_blocks)
        self._before, self._before_view = _zeros(num_blocks)
        self._plain, self._plain_view = _zeros(num_blocks)
        self._keys = array("q", [0]) * num_blocks
        self._keys_view = np.frombuffer(self._keys, dtype=np.int64)
        self._stamps = array("q", [0]) * num_blocks
        self._stamps_view = np.frombuffer(self._stamps, dtype=np.int64)
        self._stamp = 0
        """Stamps grow along the line of cached blocks, so that gaps in it can be closed in one pass."""
        self._num_plain = num_blocks - 1
        self._plain_view[: num_blocks - 1] = np.arange(num_blocks - 1, 0, -1, dtype=np.int32)
        self._num_cached = 0
        self._first, self._first_view = _zeros(64)
        """By key: the block that has held it longest, 0 for none."""
        self._others: dict[int, dict[int, None]] = {}
        """By key: the further blocks that hold it, in the order in which they got it."""

    @property
    def num_plain(self) -> int:
        """Unreferenced blocks without a key."""
        return self._num_plain

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks with a key."""
        return self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: plain and cached ones."""
        return self._num_plain + self._num_cached

    @property
    def num_used(self) -> int:
        """Referenced blocks."""
        return self.num_blocks - 1 - self._num_plain - self._num_cached

    def references(self, block: int) -> int:
        return self._refs[block]

    def key_of(self, block: int) -> int:
        """The key of `block`, or `NO_KEY`."""
        return self._keys[block]

    def find(self, key: int) -> int:
        """The block that has held `key` longest, or the null block when none does."""
        return self._first[key] if key < len(self._first) else NULL_BLOCK

    def index_for(self, num_keys: int) -> array[int]:
        """The array from key to block (0: none) after making room for keys below `num_keys`. To read only."""
        if num_keys > len(self._first):
            old = self._first_view
            self._first, self._first_view = _zeros(max(num_keys, len(old) + len(old) // 2))
            self._first_view[: len(old)] = old
        return self._first

    def take(self, count: int) -> list[int]:
        """Hand out the first `count` blocks of the line, each with one reference; those that had a key lose it.

        Raises `InvariantError` when fewer are available: callers compare first.
        """
        num_plain = self._num_plain
        if count == 1 and num_plain:
            self._num_plain = num_plain - 1
            block = self._plain[num_plain - 1]
            self._refs[block] = 1
            return [block]
        if count > num_plain + self._num_cached:
            raise InvariantError(f"{count} blocks asked of a pool with {self.num_available} available")
        rest = max(0, num_plain - count)
        blocks = self._plain[rest:num_plain].tolist()
        blocks.reverse()
        self._num_plain = rest
        self._refs_view[self._plain_view[rest:num_plain]] = 1
        if count > num_plain:
            blocks += self._evict(count - num_plain)
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block, all of which have keys; those that stood in the line leave it.

        Null blocks are skipped; no other block may be given twice.
        """
        if len(blocks) >= BULK:
            self._touch_many(blocks)
            return
        refs, after, before = self._refs, self._after, self._before
        num_left = 0
        for block in blocks:
            count = refs[block]
            if count:
                refs[block] = count + 1
            elif block:
                refs[block] = 1
                left, right = before[block], after[block]
                after[left] = right
                before[right] = left
                num_left += 1
        self._num_cached -= num_left

    def count_unreferenced(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` stand in the line now (null blocks do not)."""
        refs = self._refs
        return sum(1 for block in blocks if block and not refs[block])

    def free(self, blocks: Sequence[int]) -> None:
        """Drop a reference of each block, the one to be handed out first in front.

        Blocks left without a reference go to the front of the line in the given order when they have no key, else to
        its end in the given order. Null blocks are skipped; no other block may be given twice.
        """
        if len(blocks) >= BULK:
            self._free_many(blocks)
            return
        refs, keys, after, before, stamps = self._refs, self._keys, self._after, self._before, self._stamps
        last, stamp = before[0], self._stamp
        plain = []
        for block in blocks:
            count = refs[block] - 1
            if count > 0:
                refs[block] = count
            elif count == 0:
                refs[block] = 0
                if keys[block]:
                    after[last] = block
                    before[block] = last
                    stamps[block] = stamp
                    stamp += 1
                    last = block
                else:
                    plain.append(block)
            elif block:
                raise InvariantError(f"block {block} was freed more often than referenced")
        after[last] = 0
        before[0] = last
        self._num_cached += stamp - self._stamp
        self._stamp = stamp
        for block in reversed(plain):
            self._plain[self._num_plain] = block
            self._num_plain += 1

    def insert(self, blocks: Sequence[int], keys: Sequence[int]) -> Sequence[int]:
        """Let each block, which is referenced and has no key, be found under the key at the same place.

        A block that already holds the key stays the one that `find` answers. Returns the keys that nobody held before.
        """
        self.num_keys_stored += len(keys)
        key_of = self._keys
        if len(keys) >= BULK:
            ids, wanted = np.array(blocks, dtype=np.int32), np.array(keys, dtype=np.int64)
            self.index_for(int(wanted.max()) + 1)
            if not self._first_view[wanted].any():
                self._keys_view[ids] = wanted
                self._first_view[wanted] = ids
                return keys
        first = self.index_for(max(keys) + 1 if keys else 0)
        shared = set()
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key
            if first[key]:
                self._others.setdefault(key, {})[block] = None
                shared.add(key)
            else:
                first[key] = block
        return [key for key in keys if key not in shared] if shared else keys

    def forget(self, blocks: Sequence[int]) -> None:
        """Let `blocks`, which are referenced, be found no more: their content turned out worthless."""
        self._drop_keys([block for block in blocks if self._keys[block]])

    def reset(self) -> bool:
        """Forget every key. False, and nothing is changed, while any block is referenced."""
        if self.num_used:
            return False
        cached = self._line()
        cached.reverse()
        self._drop_keys(cached)
        num_plain = self._num_plain
        self._plain_view[len(cached) : len(cached) + num_plain] = self._plain_view[:num_plain].copy()
        self._plain_view[: len(cached)] = cached
        self._num_plain += len(cached)
        self._num_cached = 0
        self._after[0] = self._before[0] = 0
        return True

    def line(self) -> list[int]:
        """The unreferenced blocks, the one to be handed out first in front."""
        return self._plain[: self._num_plain].tolist()[::-1] + self._line()

    def check_integrity(self) -> None:
        """Raise `InvariantError` unless line, counts, keys and index agree. Looks at every block."""
        line = self.line()
        in_line = set(line)
        wrong: list[str] = []
        if len(line) != len(in_line) or len(line) != self.num_available or NULL_BLOCK in in_line:
            wrong.append(f"the line of {self.num_available} blocks repeats a block, lost one or holds the null block")
        if self._refs[0] or self._keys[0]:
            wrong.append("the null block is referenced or has a key")
        for block in range(1, self.num_blocks):
            if (block in in_line) == bool(self._refs[block]) or self._refs[block] < 0:
                wrong.append(f"block {block} has {self._refs[block]} references but stands wrong in the line")
            key = self._keys[block]
            if key and self._first[key] != block and block not in self._others.get(key, ()):
                wrong.append(f"block {block} is not in the index under its key {key}")
        cached = line[self._num_plain :]
        if any(self._keys[block] for block in line[: self._num_plain]) or not all(self._keys[b] for b in cached):
            wrong.append("plain and cached blocks are mixed in the line")
        if cached[::-1] != self._line_backwards() or any(
            self._stamps[left] >= self._stamps[right] for left, right in pairwise(cached)
        ):
            wrong.append("the links between cached blocks contradict each other")
        indexed = sum(1 for block in self._first if block) + sum(len(blocks) for blocks in self._others.values())
        if indexed != sum(1 for key in self._keys if key):
            wrong.append(f"the index holds {indexed} blocks, not those that have a key")
        if wrong:
            raise InvariantError("; ".join(wrong))

    def _touch_many(self, blocks: Sequence[int]) -> None:
        """As `touch`. Neighbours that leave together leave one gap; gaps are closed left to right by stamps."""
        refs, after, before = self._refs_view, self._after_view, self._before_view
        ids = np.array(blocks, dtype=np.int32)
        ids = ids[ids != NULL_BLOCK]
        counts = refs[ids]
        refs[ids] = counts + 1
        ids = ids[counts == 0]
        # Who stands in the line has no reference, so a referenced neighbour is one that is leaving, too.
        starts = ids[refs[before[ids]] == 0]
        ends = ids[refs[after[ids]] == 0]
        if len(starts) > 1:
            starts = starts[np.argsort(self._stamps_view[starts])]
            ends = ends[np.argsort(self._stamps_view[ends])]
        left, right = before[starts], after[ends]
        after[left] = right
        before[right] = left
        self._num_cached -= len(ids)

    def _free_many(self, blocks: Sequence[int]) -> None:
        """As `free`."""
        refs = self._refs_view
        ids = np.array(blocks, dtype=np.int32)
        ids = ids[ids != NULL_BLOCK]
        counts = refs[ids] - 1
        if (counts < 0).any():
            raise InvariantError(f"block {ids[counts < 0][0]} was freed more often than referenced")
        refs[ids] = counts
        ids = ids[counts == 0]
        has_key = self._keys_view[ids] != NO_KEY
        cached, plain = ids[has_key], ids[~has_key]
        chain = np.zeros(len(cached) + 2, dtype=np.int32)
        chain[0] = self._before[0]
        chain[1:-1] = cached
        self._after_view[chain[:-1]] = chain[1:]
        self._before_view[chain[1:]] = chain[:-1]
        self._stamps_view[cached] = np.arange(self._stamp, self._stamp + len(cached))
        self._stamp += len(cached)
        self._num_cached += len(cached)
        self._plain_view[self._num_plain : self._num_plain + len(plain)] = plain[::-1]
        self._num_plain += len(plain)

    def _evict(self, count: int) -> list[int]:
        """Unlink the first `count` cached blocks of the line, take their keys and give each a reference."""
        after = self._after
        block = 0
        evicted = []
        for _ in repeat(None, count):
            block = after[block]
            evicted.append(block)
        rest = after[block]
        after[0] = rest
        self._before[rest] = 0
        self._num_cached -= count
        self.num_keys_evicted += count
        self._drop_keys(evicted)
        refs = self._refs
        for block in evicted:
            refs[block] = 1
        return evicted

    def _drop_keys(self, blocks: Sequence[int]) -> None:
        """Take the key of each block; all have one."""
        key_of, first, others = self._keys, self._first, self._others
        if len(blocks) >= BULK:
            ids = np.array(blocks, dtype=np.int32)
            keys = self._keys_view[ids]
            vacant: list[int] = keys.tolist()
            if others.keys().isdisjoint(vacant):
                self._keys_view[ids] = NO_KEY
                self._first_view[keys] = NULL_BLOCK
                self.on_vacant(vacant)
                return
        vacant = []
        for block in blocks:
            key = key_of[block]
            key_of[block] = NO_KEY
            if key in others:
                self._drop_shared(key, block)
            else:
                first[key] = NULL_BLOCK
                vacant.append(key)
        self.on_vacant(vacant)

    def _drop_shared(self, key: int, block: int) -> None:
        """Take `block` out of a key that several blocks hold; the one that held it next longest becomes the first."""
        others = self._others[key]
        if self._first[key] == block:
            self._first[key] = block = next(iter(others))
        del others[block]
        if not others:
            del self._others[key]

    def _line(self) -> list[int]:
        """The cached blocks in the line, least recently used first."""
        return self._walk(self._after)

    def _line_backwards(self) -> list[int]:
        return self._walk(self._before)

    def _walk(self, links: array[int]) -> list[int]:
        blocks = []
        block = links[0]
        while block:
            blocks.append(block)
            block = links[block]
            if len(blocks) > self.num_blocks:
                raise InvariantError("the line of cached blocks runs in a circle")
        return blocks


def _zeros(count: int) -> tuple[array[int], np.ndarray]:
    """An int32 array and its view."""
    zeros = array("i", [0]) * count
    return zeros, np.frombuffer(zeros, dtype=np.int32)


def _ignore(keys: list[int]) -> None:
    """Nobody listens."""
