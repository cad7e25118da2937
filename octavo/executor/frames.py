"""Frames of bytes over a stream socket: four bytes of length, then as many bytes."""

from __future__ import annotations

import socket

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 16


def framed(content: bytes) -> bytes:
    """What goes over the socket, made once for any number of receivers. Raises `OverflowError` from 4 GiB on."""
    return len(content).to_bytes(_LENGTH_BYTES, "little") + content


class FrameSocket:
    """One end of a connection.

    Owns: the socket, and what was read beyond the last frame.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._rest = b""

    def fileno(self) -> int:
        return self._stream.fileno()

    def send(self, frame: bytes) -> None:
        """Send what `framed` made. Raises `OSError` when the other end is gone."""
        self._stream.sendall(frame)

    def receive(self) -> bytes:
        """The content of the next frame; waits for it. Raises `EOFError` or `OSError` when the other end is gone."""
        data = self._rest
        while len(data) < _LENGTH_BYTES:
            data += self._read(_READ_BYTES)
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < end:
            parts, missing = [data], end - len(data)
            while missing > 0:
                parts.append(self._read(max(missing, _READ_BYTES)))
                missing -= len(parts[-1])
            data = b"".join(parts)
        self._rest = data[end:]
        return data[_LENGTH_BYTES:end]

    def close(self) -> None:
        self._stream.close()

    def _read(self, most: int) -> bytes:
        data = self._stream.recv(most)
        if not data:
            raise EOFError
        return data
