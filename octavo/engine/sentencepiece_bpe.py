"""SentencePiece's BPE, over the vocabulary and scores of a GGUF file, without building a table of merges first.

The model: text is cut into characters; again and again the two neighbours whose joined text is the piece of the
highest score become one (the leftmost of equals), until no joined text is a piece. A space is written as U+2581. Pieces
that the file marks as control or user-defined are found in the text first, the longest where several begin, and take no
part in merging. A character that is no piece becomes its UTF-8 bytes.

A general BPE library wants these merges as pairs, half a million for a vocabulary of 262,144 words, which takes seconds
to build. Here the vocabulary is hashed where it lies in the file, and a pair is looked up when it is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.compiling import compiled
from octavo.errors import ModelFileError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

SPACE_MARK = "\u2581"
"""Stands for a space in pieces."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types of GGUF, which are SentencePiece's."""

_SPACE_MARK_BYTES = SPACE_MARK.encode()


class Vocabulary(NamedTuple):
    """Pieces and how to find them; the kernels take it as it is."""

    pieces: Bytes
    """The text of all pieces, in whatever frame they were stored."""
    starts: Offsets
    lengths: Ints
    scores: Floats
    table: Ints
    """Open-addressing hash table of the pieces that merging may use: indices, -1 is empty, its size a power of two."""
    byte_ids: Ints
    """`[256]`: the piece of each byte, or the unknown piece."""


class Marks(NamedTuple):
    """A trie of the pieces that are found before merging, one node a byte. Node 0 is the root; 0 and -1 mean none."""

    byte: Bytes
    child: Ints
    sibling: Ints
    token: Ints


def _compiled(function: Any) -> Any:
    return compiled(nogil=True, boundscheck=False)(function)


@_compiled
def find_strings(array: Bytes, starts: Offsets, lengths: Ints) -> None:
    """Fill in where each string of a GGUF string array begins, and how many bytes it has."""
    position = np.int64(0)
    for index in range(starts.size):
        length = np.int64(0)
        for byte in range(7, -1, -1):
            length = (length << 8) | np.int64(array[position + byte])
        starts[index], lengths[index] = position + 8, length
        position += 8 + length


@_compiled
def _hash(data: Bytes, start: int, stop: int) -> np.uint64:
    """FNV-1a of `data[start:stop]`, its high bits folded into the low ones."""
    value = np.uint64(14695981039346656037)
    for at in range(start, stop):
        value = (value ^ np.uint64(data[at])) * np.uint64(1099511628211)
    return value ^ (value >> np.uint64(29))


@_compiled
def fill_table(pieces: Bytes, starts: Offsets, lengths: Ints, usable: npt.NDArray[np.bool_], table: Ints) -> None:
    """Enter the usable pieces into the empty `table`."""
    mask = np.uint64(table.size - 1)
    for index in range(starts.size):
        if not usable[index]:
            continue
        start, stop = starts[index], starts[index] + lengths[index]
        slot = _hash(pieces, start, stop) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = index


@_compiled
def _find(data: Bytes, start: int, stop: int, vocabulary: Vocabulary) -> np.int64:
    """The piece whose text is `data[start:stop]`, or -1."""
    table = vocabulary.table
    mask = np.uint64(table.size - 1)
    slot = _hash(data, start, stop) & mask
    while table[slot] >= 0:
        index = np.int64(table[slot])
        if vocabulary.lengths[index] == stop - start:
            offset = vocabulary.starts[index] - start
            at = start
            while at < stop and vocabulary.pieces[offset + at] == data[at]:
                at += 1
            if at == stop:
                return index
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)


@_compiled
def _merge(data: Bytes, vocabulary: Vocabulary, out: Ints, num_out: int) -> int:
    """Append the ids of `data` to `out`; returns how many there are now."""
    symbol_start = np.empty(data.size + 1, dtype=np.int32)
    num_symbols = 0
    for at in range(data.size):
        if data[at] & 0xC0 != 0x80:  # not a continuation byte: a character begins
            symbol_start[num_symbols] = at
            num_symbols += 1
    symbol_start[num_symbols] = data.size
    # Symbol i reaches up to symbol following[i]; a symbol that was merged into its left neighbour follows itself.
    following = np.arange(1, num_symbols + 1).astype(np.int32)
    preceding = np.arange(-1, num_symbols - 1).astype(np.int32)
    # Entries: (negated score, left symbol, where the joined text ends). The comprehension tells the compiler the types.
    heap = [(np.float32(0), np.int32(0), np.int32(0)) for _ in range(0)]
    for first in range(num_symbols - 1):
        piece = _find(data, symbol_start[first], symbol_start[first + 2], vocabulary)
        if piece >= 0:
            heappush(heap, (-vocabulary.scores[piece], np.int32(first), symbol_start[first + 2]))
    while len(heap) > 0:
        _, left, joined_stop = heappop(heap)
        right = following[left]
        # The entry is stale when either side has changed since: its text would end elsewhere.
        if right == left or right >= num_symbols or symbol_start[following[right]] != joined_stop:
            continue
        after = following[right]
        following[left], following[right] = after, right
        if after < num_symbols:
            preceding[after] = left
            piece = _find(data, symbol_start[left], symbol_start[following[after]], vocabulary)
            if piece >= 0:
                heappush(heap, (-vocabulary.scores[piece], left, symbol_start[following[after]]))
        before = preceding[left]
        if before >= 0:
            piece = _find(data, symbol_start[before], joined_stop, vocabulary)
            if piece >= 0:
                heappush(heap, (-vocabulary.scores[piece], before, joined_stop))
    symbol = 0
    while symbol < num_symbols:
        start, stop = symbol_start[symbol], symbol_start[following[symbol]]
        piece = _find(data, start, stop, vocabulary)
        if piece >= 0:
            out[num_out] = piece
            num_out += 1
        else:
            for at in range(start, stop):
                out[num_out] = vocabulary.byte_ids[data[at]]
                num_out += 1
        symbol = following[symbol]
    return num_out


@_compiled
def find_mark(data: Bytes, at: int, marks: Marks) -> tuple[np.int64, int]:
    """(token, bytes) of the longest mark that begins at `data[at]`; (-1, 0) when there is none."""
    token, size = np.int64(-1), 0
    node, depth = np.int64(0), 0
    while at + depth < data.size:
        child = np.int64(marks.child[node])
        while child > 0 and marks.byte[child] != data[at + depth]:
            child = np.int64(marks.sibling[child])
        if child <= 0:
            break
        node, depth = child, depth + 1
        if marks.token[node] >= 0:
            token, size = np.int64(marks.token[node]), depth
    return token, size


@_compiled
def encode_text(data: Bytes, vocabulary: Vocabulary, marks: Marks) -> Ints:
    """The ids of a whole text, UTF-8 with its spaces marked."""
    out = np.empty(data.size, dtype=np.int32)
    num_out, start, at = 0, 0, 0
    while at < data.size or start < at:
        token, size = np.int64(-1), 0
        if at < data.size:
            token, size = find_mark(data, at, marks)
            if token < 0:
                at += 1
                continue
        if start < at:
            num_out = _merge(data[start:at], vocabulary, out, num_out)
        if token >= 0:
            out[num_out] = token
            num_out += 1
        at += size
        start = at
    return out[:num_out]


@_compiled
def add_mark(text: Bytes, token: int, marks: Marks, num_nodes: int) -> int:
    """Enter one mark into the trie, which has `num_nodes` nodes; returns how many it has then."""
    node = np.int64(0)
    for at in range(text.size):
        child = np.int64(marks.child[node])
        while child > 0 and marks.byte[child] != text[at]:
            child = np.int64(marks.sibling[child])
        if child <= 0:
            child = np.int64(num_nodes)
            num_nodes += 1
            marks.byte[child] = text[at]
            marks.sibling[child] = marks.child[node]
            marks.child[node] = child
        node = child
    marks.token[node] = token
    return num_nodes


class SentencePieceBPE:
    """A codec over a GGUF vocabulary of SentencePiece's kind.

    **Owns:** the hash table and the trie; the pieces stay in the mapped file. **Never:** changes after it is made.

    Parameters:
        array: the stored string array of pieces, lengths included.
        scores: `[num_pieces]`, higher merges first.
        kinds: `[num_pieces]`, GGUF token types.
        add_space_prefix: a text that does not begin with a control piece begins as if a space stood in front of it, and
            decoding takes one away.
    """

    def __init__(self, array: Bytes, scores: Floats, kinds: Ints, *, unknown_id: int, add_space_prefix: bool) -> None:
        num_pieces = scores.size
        self._array = array
        self._starts = np.empty(num_pieces, dtype=np.int64)
        self._lengths = np.empty(num_pieces, dtype=np.int32)
        find_strings(array, self._starts, self._lengths)
        table = np.full(1 << max(4, (2 * num_pieces - 1).bit_length()), -1, dtype=np.int32)
        fill_table(array, self._starts, self._lengths, kinds == NORMAL, table)
        self._byte_of = {int(index): self._byte_value(int(index)) for index in np.flatnonzero(kinds == BYTE)}
        byte_ids = np.full(256, unknown_id, dtype=np.int32)
        for index, byte in self._byte_of.items():
            byte_ids[byte] = index
        self._vocabulary = Vocabulary(array, self._starts, self._lengths, scores, table, byte_ids)
        self._control = kinds == CONTROL
        self._marks = self._make_trie(np.flatnonzero(self._control | (kinds == USER_DEFINED)))
        self._prefix = _SPACE_MARK_BYTES if add_space_prefix else b""
        self.encode(" ")  # Loads (the first time: compiles) the kernels now rather than with the first prompt.

    @property
    def vocab_size(self) -> int:
        return self._starts.size

    def encode(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace").replace(b" ", _SPACE_MARK_BYTES)
        if self._prefix and data and not self._begins_with_control(data):
            data = self._prefix + data
        return encode_text(np.frombuffer(data, dtype=np.uint8), self._vocabulary, self._marks).tolist()  # type: ignore[no-any-return]

    def decode(self, ids: Sequence[int]) -> str:
        text = b"".join([self._piece(index) for index in ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._prefix else text

    def token_bytes(self) -> list[bytes]:
        return [self._piece(index) for index in range(self._starts.size)]

    def _begins_with_control(self, data: bytes) -> bool:
        token, _ = find_mark(np.frombuffer(data, dtype=np.uint8), 0, self._marks)
        return token >= 0 and bool(self._control[token])

    def _make_trie(self, mark_ids: npt.NDArray[np.int64]) -> Marks:
        texts = [(int(index), self._stored(index).replace(b" ", _SPACE_MARK_BYTES)) for index in mark_ids]
        num_nodes = 1 + sum(len(text) for _, text in texts)
        zeros = np.zeros(num_nodes, dtype=np.int32)
        marks = Marks(zeros.astype(np.uint8), zeros, zeros.copy(), np.full(num_nodes, -1, dtype=np.int32))
        num_nodes = 1
        for index, text in texts:
            if text:
                num_nodes = add_mark(np.frombuffer(text, dtype=np.uint8), index, marks, num_nodes)
        return marks

    def _piece(self, index: int) -> bytes:
        if index in self._byte_of:
            return bytes((self._byte_of[index],))
        return self._stored(index).replace(_SPACE_MARK_BYTES, b" ") if 0 <= index < self._starts.size else b""

    def _stored(self, index: int) -> bytes:
        start = self._starts[index]
        return self._array[start : start + self._lengths[index]].tobytes()

    def _byte_value(self, index: int) -> int:
        """The value of a byte piece, spelled `<0xE2>`."""
        text = self._stored(index)
        try:
            return bytes.fromhex(text.decode()[3:5])[0]
        except (UnicodeDecodeError, ValueError, IndexError):
            raise ModelFileError(
                f"Token {index} of the vocabulary is marked as a byte, but is written {text!r}.",
                remedy="Download the file again, or convert the model again.",
            ) from None
