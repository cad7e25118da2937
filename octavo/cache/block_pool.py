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
import numpy.typing as npt

from octavo.cache.flat_array import MANY, Ids, IdView, grown, ids_of, view, zeros
from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK

NO_KEY = 0
"""Key of a block whose content nobody can look up."""

Keys = Sequence[int] | npt.NDArray[np.int64]


class BlockPool:
    """Blocks 1 .. num_blocks - 1, in flat integer arrays; block 0 is the null block and never leaves.

    A key is a positive whole number that names a block's content; several blocks may hold equal content and so one key.
    Memory is 32 bytes a block, and 4 bytes for each key up to the largest one used. No operation looks at more blocks
    than it is given or gives, unless it says so.

    Owns: reference counts, the line of unreferenced blocks, the index from key to blocks.
    Never: knows tokens, requests or groups.

    Parameters:
        num_blocks: null block included, at least 1.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise InvariantError(f"a pool of {num_blocks} blocks has no room for the null block")
        self.num_blocks = num_blocks
        self.on_vacant: Callable[[Keys], None] = lambda keys: None
        """Called with the keys that blocks lost and no other block holds, in the order in which they were lost."""
        self.num_keys_stored = 0
        """Keys given to blocks since the start."""
        self.num_keys_evicted = 0
        """Keys taken from blocks that were handed out anew, since the start."""
        # Each array has a numpy view of the same memory: single blocks go through the array, many through the view.
        self._refs, self._refs_view = zeros(num_blocks)
        self._after, self._after_view = zeros(num_blocks)
        self._before, self._before_view = zeros(num_blocks)
        self._plain, self._plain_view = zeros(num_blocks)
        self._keys = array("Q", [0]) * num_blocks
        self._keys_view = np.frombuffer(self._keys, dtype=np.int64)
        self._stamps = array("Q", [0]) * num_blocks
        self._stamps_view = np.frombuffer(self._stamps, dtype=np.int64)
        self._stamp = 0
        """Stamps grow along the line of cached blocks, so that gaps in it can be closed in one pass."""
        self._num_plain = num_blocks - 1
        self._plain_view[: num_blocks - 1] = np.arange(num_blocks - 1, 0, -1, dtype=np.int32)
        self._num_cached = 0
        self._first, self._first_view = zeros(64)
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

    def cached_keys(self) -> npt.NDArray[np.int64]:
        """The key of each unreferenced block that has one. Looks at every block."""
        keys: npt.NDArray[np.int64] = self._keys_view[(self._refs_view == 0) & (self._keys_view != NO_KEY)]
        return keys

    def find(self, key: int) -> int:
        """The block that has held `key` longest, or the null block when none does."""
        return self._first[key] if key < len(self._first) else NULL_BLOCK

    def find_many(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """As `find`, for keys that there is room for."""
        return self._first_view.take(keys)

    def index_for(self, num_keys: int) -> Ids:
        """The array from key to block (0: none) after making room for keys below `num_keys`. To read only."""
        if num_keys > len(self._first):
            self._first, self._first_view = grown(self._first_view, num_keys)
        return self._first

    def take(self, count: int) -> Ids:
        """Hand out the first `count` blocks of the line, each with one reference; those that had a key lose it.

        Raises `InvariantError` when fewer are available: callers compare first.
        """
        num_plain = self._num_plain
        if count > num_plain + self._num_cached:
            raise InvariantError(f"{count} blocks asked of a pool with {self.num_available} available")
        rest = num_plain - count if count < num_plain else 0
        if num_plain - rest < MANY:
            blocks = array("Q", self._plain[rest:num_plain])
            blocks.reverse()
            for block in blocks:
                self._refs[block] = 1
        else:
            blocks = ids_of(self._plain_view[rest:num_plain][::-1])
            self._refs_view[view(blocks)] = 1
        self._num_plain = rest
        if count > num_plain:
            blocks += self._evict(count - num_plain)
        return blocks

    def take_one(self) -> int:
        """As `take`."""
        num_plain = self._num_plain
        if not num_plain:
            return self.take(1)[0]
        self._num_plain = num_plain = num_plain - 1
        block = self._plain[num_plain]
        self._refs[block] = 1
        return block

    def touch(self, blocks: Ids) -> None:
        """Add a reference to each block, all of which have keys; those that stood in the line leave it.

        Null blocks are skipped; no other block may be given twice.
        """
        if len(blocks) >= MANY:
            self._touch_many(view(blocks))
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

    def count_unreferenced(self, blocks: Ids) -> int:
        """How many of `blocks` stand in the line now (null blocks do not)."""
        ids = view(blocks)
        return int(np.count_nonzero((self._refs_view[ids] == 0) & (ids != NULL_BLOCK)))

    def free(self, blocks: Ids) -> None:
        """Drop a reference of each block, the one to be handed out first in front.

        Blocks left without a reference go to the front of the line in the given order when they have no key, else to
        its end in the given order. Null blocks are skipped; no other block may be given twice.
        """
        if len(blocks) >= MANY:
            self._free_many(view(blocks))
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

    def insert(self, blocks: Ids, keys: Keys) -> Keys:
        """Let each block, which is referenced and has no key, be found under the key at the same place.

        A block that already holds the key stays the one that `find` answers. No key may be given twice. Returns the
        keys that nobody held before.
        """
        self.num_keys_stored += len(keys)
        if len(keys) >= MANY:
            return self._insert_many(view(blocks), np.asarray(keys))
        return [key for block, key in zip(blocks, keys, strict=True) if self._insert(block, key)]

    def insert_one(self, block: int, key: int) -> bool:
        """As `insert`; whether nobody held the key before."""
        self.num_keys_stored += 1
        return self._insert(block, key)

    def forget(self, blocks: Ids) -> None:
        """Let `blocks`, which are referenced, be found no more: their content turned out worthless."""
        self._drop_keys(array("Q", [block for block in blocks if self._keys[block]]))

    def reset(self) -> bool:
        """Forget every key. False, and nothing is changed, while any block is referenced."""
        if self.num_used:
            return False
        cached = array("Q", self._walk(self._after))
        cached.reverse()
        self._drop_keys(cached)
        num_plain = self._num_plain
        self._plain_view[len(cached) : len(cached) + num_plain] = self._plain_view[:num_plain].copy()
        self._plain_view[: len(cached)] = view(cached)
        self._num_plain += len(cached)
        self._num_cached = 0
        self._after[0] = self._before[0] = 0
        return True

    def line(self) -> list[int]:
        """The unreferenced blocks, the one to be handed out first in front."""
        return self._plain[: self._num_plain].tolist()[::-1] + self._walk(self._after)

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
        if cached[::-1] != self._walk(self._before) or any(
            self._stamps[left] >= self._stamps[right] for left, right in pairwise(cached)
        ):
            wrong.append("the links between cached blocks contradict each other")
        indexed = sum(1 for block in self._first if block) + sum(len(blocks) for blocks in self._others.values())
        if indexed != sum(1 for key in self._keys if key):
            wrong.append(f"the index holds {indexed} blocks, not those that have a key")
        if wrong:
            raise InvariantError("; ".join(wrong))

    def _touch_many(self, ids: IdView) -> None:
        """As `touch`. Neighbours that leave together leave one gap; gaps are closed left to right by stamps."""
        refs, after, before = self._refs_view, self._after_view, self._before_view
        counts = refs[ids]
        refs[ids] = counts + 1
        refs[NULL_BLOCK] = 0
        ids = ids[(counts == 0) & (ids != NULL_BLOCK)]
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

    def _free_many(self, ids: IdView) -> None:
        """As `free`."""
        refs = self._refs_view
        ids = ids[ids != NULL_BLOCK]
        counts = refs[ids] - 1
        if (counts < 0).any():
            raise InvariantError(f"block {ids[counts < 0][0]} was freed more often than referenced")
        refs[ids] = counts
        ids = ids[counts == 0]
        has_key = self._keys_view[ids] != NO_KEY
        cached, plain = ids[has_key], ids[~has_key]
        chain = np.zeros(len(cached) + 2, dtype=np.int64)
        chain[0] = self._before[0]
        chain[1:-1] = cached
        self._after_view[chain[:-1]] = chain[1:]
        self._before_view[chain[1:]] = chain[:-1]
        self._stamps_view[cached] = np.arange(self._stamp, self._stamp + len(cached))
        self._stamp += len(cached)
        self._num_cached += len(cached)
        self._plain_view[self._num_plain : self._num_plain + len(plain)] = plain[::-1]
        self._num_plain += len(plain)

    def _insert(self, block: int, key: int) -> bool:
        self._keys[block] = key
        first = self._first if key < len(self._first) else self.index_for(key + 1)
        if first[key]:
            self._others.setdefault(key, {})[block] = None
            return False
        first[key] = block
        return True

    def _insert_many(self, ids: IdView, keys: npt.NDArray[np.int64]) -> Keys:
        """As `insert`."""
        self.index_for(int(keys.max()) + 1)
        self._keys_view[ids] = keys
        is_held = self._first_view[keys] != NULL_BLOCK
        if not is_held.any():
            self._first_view[keys] = ids
            return keys
        for block, key in zip(ids[is_held].tolist(), keys[is_held].tolist(), strict=True):
            self._others.setdefault(key, {})[block] = None
        new: npt.NDArray[np.int64] = keys[~is_held]
        self._first_view[new] = ids[~is_held]
        return new

    def _evict(self, count: int) -> Ids:
        """Unlink the first `count` cached blocks of the line, take their keys and give each a reference."""
        after = self._after
        block = 0
        evicted = [block := after[block] for _ in repeat(None, count)]
        rest = after[block]
        after[0] = rest
        self._before[rest] = 0
        self._num_cached -= count
        self.num_keys_evicted += count
        blocks = array("Q", evicted)
        self._drop_keys(blocks)
        self._refs_view[view(blocks)] = 1
        return blocks

    def _drop_keys(self, blocks: Ids) -> None:
        """Take the key of each block; all have one."""
        key_of, first, others = self._keys, self._first, self._others
        if len(blocks) >= MANY:
            ids = view(blocks)
            keys = self._keys_view[ids]
            if not others or others.keys().isdisjoint(keys.tolist()):
                self._keys_view[ids] = NO_KEY
                self._first_view[keys] = NULL_BLOCK
                self.on_vacant(keys)
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

    def _walk(self, links: array[int]) -> list[int]:
        """The cached blocks in the line, least recently used first; backwards through `_before`."""
        blocks = []
        block = links[0]
        while block:
            blocks.append(block)
            block = links[block]
            if len(blocks) > self.num_blocks:
                raise InvariantError("the line of cached blocks runs in a circle")
        return blocks
