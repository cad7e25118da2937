"""What stands in a block, so that two blocks can be compared: token ids, the digests of media, and whose they are."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

TOKEN_BYTES = 4


def root_content(*, salt: str | None = None, adapter: str | None = None) -> bytes:
    """What tells apart requests that must not share blocks at all; empty for a plain request."""
    if salt is None and adapter is None:
        return b""
    parts = [b"-" if text is None else b"+" + text.encode("utf-8", "surrogatepass") for text in (salt, adapter)]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


class BlockContents:
    """The contents of consecutive blocks.

    Token ids lie side by side as bytes, so that many blocks are compared in one go. A block that media overlap has
    their digests beside its token ids, and is compared alone.

    Parameters:
        token_bytes: the token ids of all blocks, int32.
        block_bytes: of one block, at least 1.
        digests: of media, by block.
    """

    __slots__ = ("block_bytes", "digests", "num_blocks", "token_bytes")

    def __init__(self, token_bytes: bytes, block_bytes: int, digests: dict[int, bytes] | None = None) -> None:
        self.token_bytes = token_bytes
        self.block_bytes = block_bytes
        self.digests = digests or {}
        self.num_blocks = len(token_bytes) // block_bytes

    def __len__(self) -> int:
        return self.num_blocks

    def block(self, place: int) -> bytes:
        """The whole content of one block."""
        tokens = self.token_bytes[place * self.block_bytes : (place + 1) * self.block_bytes]
        return tokens + self.digests[place] if place in self.digests else tokens

    def runs(self, first: int) -> Iterator[tuple[int, int]]:
        """(start, stop) of runs of blocks from `first` on, in which no block but the first one has media."""
        starts = [first, *sorted(place for place in self.digests if place > first)]
        return zip(starts, [*starts[1:], self.num_blocks], strict=True)

    def num_common(self, place: int, tokens: bytearray, other: int) -> int:
        """How many blocks from `place` on equal those of `tokens` from block `other` on; one with media equals none."""
        size = self.block_bytes
        count = min(self.num_blocks - place, len(tokens) // size - other)
        if self.digests:
            count = min([count, *(block - place for block in self.digests if block >= place)])
        mine, theirs = place * size, other * size
        length = count * size
        if self.token_bytes[mine : mine + length] == tokens[theirs : theirs + length]:
            return count
        left = np.frombuffer(self.token_bytes, np.int32, length // TOKEN_BYTES, mine)
        right = np.frombuffer(tokens, np.int32, length // TOKEN_BYTES, theirs)
        return int((left != right).argmax()) * TOKEN_BYTES // size


def block_contents(
    token_ids: array[int], block_size: int, first: int, stop: int, media: Sequence[tuple[int, int, bytes]] = ()
) -> BlockContents:
    """The contents of blocks `first` .. `stop - 1` of `token_ids` (int32).

    Parameters:
        media: (first position, number of positions, digest) of each image or the like; token ids alone do not say
            what stands at these positions.
    """
    digests: dict[int, bytes] = {}
    for begin, length, digest in media:
        for block in range(max(first, begin // block_size), min(stop, -(-(begin + length) // block_size))):
            offset = begin - block * block_size
            digests[block - first] = (
                digests.get(block - first, b"") + offset.to_bytes(8, "little", signed=True) + digest
            )
    tokens = token_ids[first * block_size : stop * block_size].tobytes()
    return BlockContents(tokens, block_size * TOKEN_BYTES, digests)
