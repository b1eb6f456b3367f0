"""A frame is accepted only if its MAC is valid: damaged, repeated, reordered, foreign and outdated ones are not."""

from __future__ import annotations

import contextlib
import random
import select
import socket

import pytest

from frog.train.comm.collectives.connection import Connection, complete
from frog.train.comm.collectives.errors import CollectiveError, PeerClosed, Refused
from frog.train.comm.collectives.frames import DATA, HEADER_BYTES, MAGIC, VERSION, FrameCodec

KEY = b"k" * 32
PAYLOAD = bytes(range(200))


def test_frames_sent_before_a_peer_left_are_received() -> None:
    """The peer leaves with unread data, so the system reports a connection reset to the next sender."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    here, there = (Connection(end, 1, FrameCodec(KEY, True), FrameCodec(KEY, True)) for end in (ours, theirs))
    here.send(DATA, 0, memoryview(PAYLOAD))
    here.move()
    there.send(DATA, 0, memoryview(PAYLOAD))
    there.move()
    select.select([theirs], [], [])
    there.close()
    room = bytearray(len(PAYLOAD))
    here.receive(DATA, 0, memoryview(room))
    here.receive(DATA, 1, memoryview(bytearray(1)))
    poll = select.poll()
    poll.register(ours, 0)
    poll.poll()  # wait for the reset
    here.send(DATA, 1, memoryview(PAYLOAD))
    with pytest.raises(PeerClosed):
        here.move()
    assert room == PAYLOAD
    here.close()


def frames(count: int = 3, key: bytes = KEY) -> list[bytes]:
    sending = FrameCodec(key, checks_payload=True)
    return [sending.header(DATA, number, PAYLOAD) for number in range(count)]


def test_authentic_frame_opens() -> None:
    receiving = FrameCodec(KEY, checks_payload=True)
    for number, header in enumerate(frames()):
        seen = receiving.open(header)
        assert (seen.kind, seen.seq, seen.num_bytes) == (DATA, number, len(PAYLOAD))
        receiving.check(seen, PAYLOAD)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([frames()[1]], "wrong MAC"),  # the first frame is missing
        ([frames()[0], frames()[0]], "wrong MAC"),  # a repeated frame
        ([frames(key=b"x" * 32)[0]], "wrong MAC"),  # of another group
        ([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n123456"], "not a frame"),
        ([MAGIC.to_bytes(2, "big") + bytes([VERSION + 1]) + bytes(HEADER_BYTES - 3)], "a frame of version 2"),
    ],
)
def test_invalid_headers_are_refused(headers: list[bytes], words: str) -> None:
    receiving = FrameCodec(KEY, checks_payload=True)
    for header in headers[:-1]:
        with contextlib.suppress(Refused):
            receiving.open(header)
    with pytest.raises(Refused, match=words):
        receiving.open(headers[-1][:HEADER_BYTES])


def test_damaged_payload_is_refused() -> None:
    receiving = FrameCodec(KEY, checks_payload=True)
    seen = receiving.open(frames()[0])
    with pytest.raises(Refused, match="checksum"):
        receiving.check(seen, PAYLOAD[:-1] + b"!")


@pytest.mark.slow
def test_ten_thousand_damaged_streams_never_hang_or_change_a_payload() -> None:
    """Bytes are changed, removed, added, repeated or cut off: the result is an error, or the original payload."""
    draw = random.Random(14)
    sending = FrameCodec(KEY, checks_payload=True)
    whole = b"".join(sending.header(DATA, number, PAYLOAD) + PAYLOAD for number in range(2))
    outcomes = {"right": 0, "refused": 0}
    for _ in range(10_000):
        stream = bytearray(whole)
        for _ in range(draw.randint(0, 3)):
            place = draw.randrange(len(stream))
            kind = draw.randrange(5)
            if kind == 0:
                stream[place] ^= 1 << draw.randrange(8)
            elif kind == 1:
                del stream[place : place + draw.randint(1, 40)]
            elif kind == 2:
                stream[place:place] = draw.randbytes(draw.randint(1, 40))
            elif kind == 3:
                stream[place:place] = stream[: draw.randint(1, 300)]
            else:
                del stream[place:]
            if not stream:
                break
        outcomes[read(bytes(stream), whole)] += 1
    assert outcomes["right"] > 1000
    assert outcomes["refused"] > 5000


def read(stream: bytes, whole: bytes) -> str:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(stream)
        theirs.shutdown(socket.SHUT_WR)
        connection = Connection(_Plain(ours), 1, FrameCodec(KEY, True), FrameCodec(KEY, True))  # type: ignore[arg-type]
        rooms = [bytearray(len(PAYLOAD)) for _ in range(2)]
        for number, room in enumerate(rooms):
            connection.receive(DATA, number, memoryview(room))
        try:
            complete([connection], timeout_s=5)
        except (Refused, PeerClosed):
            return "refused"
        except CollectiveError as error:
            raise AssertionError(f"{error} of {stream!r}") from error
        assert rooms == [bytearray(PAYLOAD)] * 2
        assert stream.startswith(whole)
        return "right"


class _Plain:
    """A socket without TCP options."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def setsockopt(self, *option: int) -> None:
        return

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def fileno(self) -> int:
        return self._sock.fileno()
