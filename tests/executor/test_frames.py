"""Frames over a stream."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.executor.frames import FrameSocket, framed


@settings(max_examples=50, deadline=None)
@given(contents=st.lists(st.binary(max_size=200), max_size=6), cut=st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(contents: list[bytes], cut: int) -> None:
    near, far = socket.socketpair()
    with near, far:
        stream = b"".join(map(framed, contents))

        def write() -> None:
            for start in range(0, len(stream), cut):
                near.sendall(stream[start : start + cut])

        writer = threading.Thread(target=write)
        writer.start()
        frames = FrameSocket(far)
        assert [frames.receive() for _ in contents] == contents
        writer.join()


def test_a_frame_larger_than_a_socket_holds() -> None:
    near, far = socket.socketpair()
    with near, far:
        content = bytes(range(256)) * 20_000
        writer = threading.Thread(target=FrameSocket(near).send, args=(framed(content),))
        writer.start()
        assert FrameSocket(far).receive() == content
        writer.join()


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", framed(b"hello")[:-1]])
def test_an_end_before_the_frame_is_whole(sent: bytes) -> None:
    near, far = socket.socketpair()
    with far:
        near.sendall(sent)
        near.close()
        with pytest.raises(EOFError):
            FrameSocket(far).receive()
