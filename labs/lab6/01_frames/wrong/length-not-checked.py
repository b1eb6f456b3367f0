"""One frame out, one frame in, at the same time: the step of which a ring consists."""

import select
import socket
import struct

HEADER = struct.Struct("!4sQ")
"""MARK, then the number of bytes that follow, as an unsigned integer of 8 bytes, big-endian."""
MARK = b"RING"

Buffer = bytes | bytearray | memoryview


class FrameError(Exception):
    """The bytes that arrived are not the expected frame."""


def bytes_of(buffer: Buffer) -> memoryview:
    """Return the same memory, seen as single bytes, whatever its items are."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def select_ready(
    readers: list[socket.socket], writers: list[socket.socket], timeout_s: float
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Wait until a socket has bytes to receive, or room for bytes to send; return those, or nothing after timeout_s."""
    readable, writable, _ = select.select(readers, writers, [], timeout_s)
    return readable, writable


def exchange(right: socket.socket, left: socket.socket, out: Buffer, into: Buffer, timeout_s: float) -> None:
    """Send `out` to `right` as one frame, and at the same time receive one frame from `left` into `into`.

    right, left:  connected and non-blocking; with two ranks they are the same socket. More exchanges follow on them.
    out, into:    contiguous memory with items of any size, such as float32; `into` is writable. Either may be empty.

    Returns when the system has taken all of `out`, and `into` is full. All ranks of a ring call it at the same time, in
    one thread each, with buffers that may be larger than those of the system.

    Raises:  FrameError if the frame from `left` has another mark, or not as many bytes as `into`;
             ConnectionError if `left` is closed before its frame is complete;
             TimeoutError if for timeout_s no byte could be sent or received.
    """
    leaving = memoryview(HEADER.pack(MARK, len(bytes_of(out))) + bytes_of(out))
    header, space = bytearray(HEADER.size), bytes_of(into)
    arriving, in_header = memoryview(header), True
    while leaving or arriving:
        readable, writable = select_ready([left] if arriving else [], [right] if leaving else [], timeout_s)
        if not readable and not writable:
            raise TimeoutError(f"{len(arriving)} bytes to receive, {len(leaving)} to send: none moved in {timeout_s} s")
        if writable:
            leaving = leaving[right.send(leaving) :]
        if readable:
            count = left.recv_into(arriving)
            if count == 0:
                raise ConnectionError(f"closed before the last {len(arriving)} bytes")
            arriving = arriving[count:]
            if in_header and not arriving:
                mark, length = HEADER.unpack(header)
                if mark != MARK:
                    raise FrameError(f"{mark!r} and {length} bytes, expected {MARK!r} and {len(space)}")
                arriving, in_header = space, False
