"""The slow, obvious model beside the cache manager: what a device's memory would hold, slot by slot.

Every write is recorded as (group, position, salt, all tokens up to that position); every read is checked against what
the request itself would have written. So a block freed too early, shared while it is written, or handed to a request
with another prefix is caught at the first read of it, whatever the manager believes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.request_blocks import ComputedBlocks
from octavo.kv.specs import ChunkedLocalSpec, LayerSpec, SlidingWindowSpec
from octavo.request import Request

Content = tuple[int, int, str | None, bytes]


def first_read(spec: LayerSpec, position: int) -> int:
    """The first position that the token at `position` reads, from the definition of its kind."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - spec.window + 1)
    if isinstance(spec, ChunkedLocalSpec):
        return position // spec.chunk * spec.chunk
    return 0


class WrittenMemory:
    """What each slot holds, and the naive answers that follow from it.

    Owns: the contents of all slots.
    Never: asks the manager anything but which block has a key and which tables requests have.
    """

    def __init__(self, manager: KVCacheManager, specs: Sequence[LayerSpec]) -> None:
        self.manager = manager
        self.specs = specs
        self.slots: dict[tuple[int, int], Content] = {}

    def content(self, request: Request, group: int, position: int) -> Content:
        """What `request` writes for `position` in `group`."""
        return (group, position, request.cache_salt, request.token_ids[: position + 1].tobytes())

    def write(self, request: Request, positions: Iterable[int], others: Iterable[Request]) -> None:
        """The device writes K and V of `positions`; nobody else may see it unless it is their prefix, too."""
        others = list(others)
        for group, (spec, table) in enumerate(zip(self.specs, self._tables(request), strict=True)):
            for position in positions:
                place, offset = divmod(position, spec.block_size)
                block = table[place]
                assert block, f"{request.request_id} has no block for position {position} of group {group}"
                written = self.content(request, group, position)
                for other in others:
                    for other_group, blocks in enumerate(self._tables(other)):
                        if block in blocks:
                            shares = other_group == group and blocks.index(block) == place
                            known = position < other.num_tokens and self.content(other, group, position) == written
                            assert shares and known, (
                                f"{request.request_id} writes block {block} that {other.request_id} uses"
                            )
                self.slots[block, offset] = written

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """The device copies whole blocks, (source, destination) each, reading all before it writes any."""
        copies = list(copies)
        assert len({target for _, target in copies}) == len(copies)
        content = {
            (target, offset): held
            for source, target in copies
            for (block, offset), held in self.slots.items()
            if block == source
        }
        for _, target in copies:
            assert target, "the null block is written"
            for place in [place for place in self.slots if place[0] == target]:
                del self.slots[place]
        self.slots.update(content)

    def keeps(self, request: Request, num_tokens: int) -> bool:
        """Whether the request's tables still hold all that the token at `num_tokens` reads of those before it, and the
        block that it is written into where that has begun."""
        for spec, table in zip(self.specs, self._tables(request), strict=True):
            places = {seen // spec.block_size for seen in range(first_read(spec, num_tokens), num_tokens)}
            if num_tokens % spec.block_size:
                places.add(num_tokens // spec.block_size)
            if not all(table[place] for place in places):
                return False
        return True

    def read(self, request: Request, positions: Iterable[int]) -> None:
        """The tokens at `positions` read what their kinds of attention read, and must find their own prefix."""
        for group, (spec, table) in enumerate(zip(self.specs, self._tables(request), strict=True)):
            for position in positions:
                for seen in range(first_read(spec, position), position + 1):
                    place, offset = divmod(seen, spec.block_size)
                    block = table[place]
                    assert block, f"{request.request_id}: position {seen} of group {group} is gone at {position}"
                    found = self.slots.get((block, offset))
                    assert found == self.content(request, group, seen), (
                        f"{request.request_id}: block {block} offset {offset} holds {found} at position {seen}"
                    )

    def longest_hit(self, request: Request) -> int:
        """The longest prefix after which every group could go on from blocks that have a key, found by trying all."""
        cached: set[Content] = set()
        for block in range(1, self.manager.num_blocks):
            if self.manager.is_cached(block):
                assert (block, 0) in self.slots, f"block {block} can be found but was never written"
                size = self.specs[self.slots[block, 0][0]].block_size
                assert (block, size - 1) in self.slots, f"block {block} can be found but was never filled"
                cached.add(self.slots[block, size - 1])
        limit = request.num_tokens - 1
        alignment = self.manager.scheduler_block_size
        for length in range(limit - limit % alignment, 0, -alignment):
            if all(content in cached for content in self._needed(request, length)):
                return length
        return 0

    def _needed(self, request: Request, length: int) -> Iterator[Content]:
        """The last slots of the blocks that a hit of `length` tokens reads."""
        for group, spec in enumerate(self.specs):
            first = first_read(spec, length) // spec.block_size
            if isinstance(spec, SlidingWindowSpec):  # With a window of 1 nothing is read, yet one block is asked for.
                first = min(first, length // spec.block_size - 1)
            for place in range(first, length // spec.block_size):
                yield self.content(request, group, (place + 1) * spec.block_size - 1)

    def blocks_needed(self, request: Request, num_tokens: int, computed: ComputedBlocks) -> int:
        """Available blocks that placing the first `num_tokens` tokens takes, hits that nobody uses included."""
        in_use = {
            block for name in self.manager.request_ids() for table in self.manager.block_ids(name) for block in table
        }
        held = self._tables(request) if request.request_id in self.manager.request_ids() else computed.block_ids
        needed = 0
        for spec, table in zip(self.specs, held, strict=True):
            needed += -(-num_tokens // spec.block_size) - len(table)
            needed += sum(1 for block in table if block and block not in in_use)
        return needed

    def _tables(self, request: Request) -> tuple[list[int], ...]:
        return self.manager.block_ids(request.request_id)
