"""One frame out, one frame in, at the same time: the step of which a ring consists."""

import select
import selectors
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
    with selectors.DefaultSelector() as selector:
        leaving = [memoryview(HEADER.pack(MARK, len(bytes_of(out)))), bytes_of(out)]
        data, space = bytearray(), bytes_of(into)
        total = HEADER.size + len(space)
        wanted = {left: selectors.EVENT_READ}
        wanted[right] = wanted.get(right, 0) | selectors.EVENT_WRITE
        for sock, events in wanted.items():
            selector.register(sock, events)
        while wanted:
            ready = selector.select(timeout_s)
            if not ready:
                raise TimeoutError("no byte moved")
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    count = right.sendmsg(leaving)
                    while leaving and count >= len(leaving[0]):
                        count -= len(leaving.pop(0))
                    if leaving:
                        leaving[0] = leaving[0][count:]
                    else:
                        drop(selector, wanted, right, selectors.EVENT_WRITE)
                if events & selectors.EVENT_READ:
                    goal = HEADER.size if len(data) < HEADER.size else total
                    part = left.recv(goal - len(data))
                    if not part:
                        raise ConnectionError("closed in the middle")
                    data += part
                    if len(data) == HEADER.size and data != HEADER.pack(MARK, len(space)):
                        raise FrameError(bytes(data))
                    if len(data) == total:
                        drop(selector, wanted, left, selectors.EVENT_READ)
        space[:] = data[HEADER.size :]


def drop(selector: selectors.BaseSelector, wanted: dict[socket.socket, int], sock: socket.socket, event: int) -> None:
    wanted[sock] &= ~event
    if wanted[sock]:
        selector.modify(sock, wanted[sock])
    else:
        del wanted[sock]
        selector.unregister(sock)
