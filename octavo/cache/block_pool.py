"""Who references which block, which block is handed out next, and which block holds which key.

The line of unreferenced blocks, first to be handed out on the left:

    plain blocks (content worthless)      cached blocks (content known by a key)
    newest freed ... ids never used   |   least recently used ... most recently used
    a stack: `_plain`, top = front        a doubly linked list through `_next` and `_prev`, block 0 is its anchor

A block in the line loses its key only by being handed out or by `reset`, so plain ones always stand before cached ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

import numpy as np

from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK

NO_KEY = 0
"""Key of a block whose content nobody can look up."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1, in flat integer arrays; block 0 is the null block and never leaves.

    A key is a positive whole number that names a block's content; several blocks may hold equal content and so one key.
    Memory is about 24 bytes a block, and about 4 bytes for each key up to the largest one used.

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
        """Called with the keys that no block holds any more, in the order in which they were lost."""
        self._refs = array("i", bytes(4 * num_blocks))
        self._keys = array("q", bytes(8 * num_blocks))
        self._next = array("i", bytes(4 * num_blocks))
        self._prev = array("i", bytes(4 * num_blocks))
        self._plain = array("i", np.arange(num_blocks - 1, 0, -1, dtype=np.int32).tobytes())
        self._first = array("i", bytes(4 * 64))
        self._others: dict[int, dict[int, None]] = {}
        self._num_cached = 0
        self.num_keys_stored = 0
        """Keys given to blocks since the start."""
        self.num_keys_evicted = 0
        """Keys taken from blocks that were handed out anew, since the start."""

    @property
    def num_plain(self) -> int:
        """Unreferenced blocks without a key."""
        return len(self._plain)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks with a key."""
        return self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: plain and cached ones."""
        return len(self._plain) + self._num_cached

    @property
    def num_used(self) -> int:
        """Referenced blocks."""
        return self.num_blocks - 1 - self.num_available

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
        missing = num_keys - len(self._first)
        if missing > 0:
            self._first.frombytes(bytes(4 * max(missing, len(self._first) // 2)))
        return self._first

    def take(self, count: int) -> list[int]:
        """Hand out the first `count` blocks of the line, each with one reference; those that had a key lose it.

        Raises `InvariantError` when fewer are available: callers compare first.
        """
        plain = self._plain
        num_evicted = count - len(plain)
        if num_evicted <= 0:
            if count <= 0:
                return []
            blocks = plain[-count:].tolist()
            blocks.reverse()
            del plain[-count:]
        elif num_evicted > self._num_cached:
            raise InvariantError(f"{count} blocks asked of a pool with {self.num_available} available")
        else:
            blocks = plain.tolist()
            blocks.reverse()
            del plain[:]
            blocks += self._evict(num_evicted)
        refs = self._refs
        for block in blocks:
            refs[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; those that stood in the line leave it. Null blocks are skipped."""
        refs, after, before = self._refs, self._next, self._prev
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

    def count_unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` stand in the line now (null blocks do not)."""
        refs = self._refs
        return sum(1 for block in blocks if block and not refs[block])

    def free(self, blocks: Sequence[int]) -> None:
        """Drop a reference of each block, the one to be handed out first in front. Null blocks are skipped.

        Blocks left without a reference go to the front of the line in the given order when they have no key, else to
        its end in the given order.
        """
        refs, keys, after, before = self._refs, self._keys, self._next, self._prev
        last = before[0]
        plain = []
        num_cached = 0
        for block in blocks:
            count = refs[block] - 1
            if count > 0:
                refs[block] = count
            elif count == 0:
                refs[block] = 0
                if keys[block]:
                    after[last] = block
                    before[block] = last
                    last = block
                    num_cached += 1
                else:
                    plain.append(block)
            elif block:
                raise InvariantError(f"block {block} was freed more often than referenced")
        after[last] = 0
        before[0] = last
        self._num_cached += num_cached
        plain.reverse()
        self._plain.extend(plain)

    def insert(self, block: int, key: int) -> bool:
        """Let `block`, which is referenced and has no key, be found under `key`. True when nobody held the key before.

        A block that already holds `key` stays the one that `find` answers.
        """
        if self._keys[block] or not self._refs[block]:
            raise InvariantError(f"block {block} cannot take key {key}: it has one or is not referenced")
        self._keys[block] = key
        self.num_keys_stored += 1
        first = self._first if key < len(self._first) else self.index_for(key + 1)
        if not first[key]:
            first[key] = block
            return True
        self._others.setdefault(key, {})[block] = None
        return False

    def forget(self, blocks: Iterable[int]) -> None:
        """Let `blocks`, which are referenced, be found no more: their content turned out worthless."""
        self._drop_keys([block for block in blocks if self._keys[block]])

    def reset(self) -> bool:
        """Forget every key. False, and nothing is changed, while any block is referenced."""
        if self.num_used:
            return False
        cached = self._line()
        vacant = [self._keys[block] for block in cached if self._first[self._keys[block]] == block]
        for block in cached:
            self._first[self._keys[block]] = NULL_BLOCK
            self._keys[block] = NO_KEY
        self._others.clear()
        self._next[0] = self._prev[0] = 0
        self._num_cached = 0
        cached.reverse()
        self._plain = array("i", cached) + self._plain
        self.on_vacant(vacant)
        return True

    def line(self) -> list[int]:
        """The unreferenced blocks, the one to be handed out first in front."""
        return self._plain.tolist()[::-1] + self._line()

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
        if any(self._keys[block] for block in self._plain) or not all(self._keys[block] for block in self._line()):
            wrong.append("plain and cached blocks are mixed in the line")
        indexed = sum(1 for block in self._first if block) + sum(len(blocks) for blocks in self._others.values())
        if indexed != sum(1 for key in self._keys if key):
            wrong.append(f"the index holds {indexed} blocks, not those that have a key")
        if wrong:
            raise InvariantError("; ".join(wrong))

    def _evict(self, count: int) -> list[int]:
        """Unlink the first `count` cached blocks of the line and take their keys."""
        after = self._next
        block = 0
        evicted = []
        for _ in repeat(None, count):
            block = after[block]
            evicted.append(block)
        rest = after[block]
        after[0] = rest
        self._prev[rest] = 0
        self._num_cached -= count
        self.num_keys_evicted += count
        self._drop_keys(evicted)
        return evicted

    def _drop_keys(self, blocks: Sequence[int]) -> None:
        """Take the key of each block; all have one."""
        keys, first, others = self._keys, self._first, self._others
        vacant = []
        for block in blocks:
            key = keys[block]
            keys[block] = NO_KEY
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
        after = self._next
        blocks = []
        block = after[0]
        while block:
            blocks.append(block)
            block = after[block]
            if len(blocks) > self.num_blocks:
                raise InvariantError("the line of cached blocks runs in a circle")
        return blocks


def _ignore(keys: list[int]) -> None:
    """Nobody listens."""
