"""Send messages between two processes, over a real TCP connection for each case."""

import contextlib
import random
import socket
from collections.abc import Iterable, Iterator
from itertools import repeat
from types import ModuleType
from typing import Any

import torch.distributed as dist

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class AwaitsAnswerError(Exception):
    """Raised when send_message reads from its socket."""


class Narrow(socket.socket):
    """A real socket as on a busy network: a call accepts or returns as many bytes as `takes` or `gives` says next."""

    gives: Iterator[int] | None = None
    takes: Iterator[int] | None = None
    only_sends = False
    """A socket that only sends: reading from it is an error, unless the call returns immediately."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return super().recv(self.narrowed(bufsize, flags), flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, self.narrowed(nbytes or memoryview(buffer).nbytes, flags), flags)

    def recvfrom(self, bufsize: int, flags: int = 0) -> Any:
        return super().recvfrom(self.narrowed(bufsize, flags), flags)

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> Any:
        return super().recvmsg(self.narrowed(bufsize, flags), ancbufsize, flags)

    def recvmsg_into(self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0) -> Any:
        return self.recv_into(next(iter(buffers)), 0, flags), [], 0, None

    def send(self, data: Any, flags: int = 0) -> int:
        if self.takes is None:
            return super().send(data, flags)
        return super().send(memoryview(data).cast("B")[: next(self.takes)], flags)

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        return self.send(b"".join(buffers), flags)

    def narrowed(self, size: int, flags: int) -> int:
        if self.only_sends and self.gettimeout() != 0 and not flags & socket.MSG_DONTWAIT:
            raise AwaitsAnswerError("send_message waits for an answer on its socket")
        wide = self.gives is None or flags & socket.MSG_WAITALL
        return size if wide else min(size, next(self.gives))


def few(seed: int) -> Iterator[int]:
    numbers = random.Random(seed)
    yield 1
    while True:
        yield numbers.randint(1, 7)


def make_messages(seed: int) -> dict[str, list[bytes]]:
    """Draw the messages of each case, by name; all must arrive, except `torn`, of which only a part is sent."""
    numbers = random.Random(seed)
    some = ["".join(numbers.choices(LETTERS, k=numbers.randint(20, 60))).encode() for _ in range(5)]
    marks = b"\n\r\n\0\xff%04d<end>EOF %d\n" % (numbers.randint(0, 99), numbers.randint(0, 99))
    return {
        "waiting": some,
        "slow receiver": some[:3],
        "byte by byte": some,
        "slow sender": some[2:],
        "empty": [b"", some[0], b"", b""],
        "any bytes": [
            *(bytes([byte]) for byte in range(256)),
            b"\n",
            b"12345 and words",
            marks,
            some[1] + b"\n",
            b"7" * numbers.randint(3, 9),
        ],
        "two connections": some[:4],
        "large": [numbers.randbytes(300_000 + numbers.randint(0, 9999)), b"after", numbers.randbytes(70_000)],
        "torn": [some[4]],
    }


def with_marks(wire: bytes, message: bytes) -> list[bytes]:
    """Build messages that contain the bytes that the learner's code sends before and after a message."""
    before, found, after = wire.partition(message)
    if not found:
        return []
    return [message[:9] + after + message[9:], after, message + after, before + message, after + before, wire]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Run all cases: rank 0 sends, rank 1 receives, and the sender closes its side at the end of each case."""
    found: dict[str, Any] = {}
    listener = socket.create_server(("127.0.0.1", 0)) if dist.get_rank() == 0 else None
    address = [listener.getsockname() if listener else None]
    dist.broadcast_object_list(address, src=0)
    for name, messages in make_messages(case["seed"]).items():
        if name not in ("torn", "two connections"):
            found[name] = exchange(learner, case["seed"], name, messages, listener, address[0], found)
    torn = [torn_bytes(learner, make_messages(case["seed"])["torn"][0]) if listener else None]
    dist.broadcast_object_list(torn, src=0)
    found["on the wire"], found["torn"] = torn[0], []
    own = with_marks(torn[0], make_messages(case["seed"])["torn"][0])
    found["its own marks"] = exchange(learner, case["seed"], "its own marks", own, listener, address[0], found)
    messages = make_messages(case["seed"])["two connections"]
    found["two connections"] = in_turn(learner, messages, listener, address[0])
    for cut in cuts(len(torn[0]), case["seed"]):  # last: a part of a message may stay behind in the learner's module
        found["torn"].append([cut, tear(learner, torn[0][:cut], listener, address[0])])
    return found


def connect(listener: socket.socket | None, address: Any) -> Narrow:
    """Return one end of a new connection: the listener's, or the other's."""
    if listener is None:
        end = socket.create_connection(tuple(address))
    else:
        end, _ = listener.accept()
    end.settimeout(None)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # so that a large message does not fit
        end.setsockopt(socket.SOL_SOCKET, buffer, 1 << 15)
    return Narrow(fileno=end.detach())


def exchange(
    learner: ModuleType,
    seed: int,
    name: str,
    messages: list[bytes],
    listener: socket.socket | None,
    address: Any,
    found: dict[str, Any],
) -> Any:
    """Return the sender's result for each message, or what the receiver got, up to None, an error, or one too many.

    Adds the bytes that the receiver sends to the sender to found["answers"].
    """
    with connect(listener, address) as sock:
        if name == "byte by byte":
            sock.gives = repeat(1)
        if name == "slow receiver":
            sock.gives = few(seed)
        if name == "slow sender":
            sock.takes = few(seed)
        if listener is None:
            if name == "waiting":
                dist.barrier()  # now everything is in this end's buffer
            received = receive_all(learner, sock, len(messages) + 1)
            shut(sock)  # a file of the learner's over this socket keeps it open when it is closed
            return received
        sent = list(send_all(learner, sock, messages))
        shut(sock)
        if name == "waiting":
            dist.barrier()
        found["answers"] = found.get("answers", b"") + answers(sock)
        return sent


def in_turn(learner: ModuleType, messages: list[bytes], listener: socket.socket | None, address: Any) -> Any:
    """Send messages over two connections alternately; receive them from the two in turn."""
    with connect(listener, address) as first, connect(listener, address) as second:
        pairs = list(zip(messages, [first, second] * len(messages), strict=False))
        if listener is None:
            dist.barrier()
            return [received for _, sock in pairs for received in receive_all(learner, sock, 1)]
        sent = [said for message, sock in pairs for said in send_all(learner, sock, [message])]
        shut(first)
        shut(second)
        dist.barrier()
        return sent


def send_all(learner: ModuleType, sock: Narrow, messages: list[bytes]) -> Iterator[str]:
    """Send messages; return for each the error that it raised, or nothing, up to the first error."""
    sock.only_sends = True
    for message in messages:
        try:
            learner.send_message(sock, message)
        except NotImplementedError:
            raise
        except Exception as error:
            yield said(error)
            return
        yield ""


def receive_all(learner: ModuleType, sock: socket.socket, most: int) -> list[Any]:
    """Receive messages; the last item is None, or an error as [type, text]."""
    received: list[Any] = []
    while len(received) < most:
        try:
            message = learner.receive_message(sock)
        except NotImplementedError:
            raise
        except ConnectionError as error:
            return [*received, ["ConnectionError", said(error)]]
        except Exception as error:
            return [*received, ["other", said(error)]]
        received.append(bytes(message) if isinstance(message, bytearray | memoryview) else message)
        if message is None:
            break
    return received


def said(error: Exception) -> str:
    """Return the type of an error, and its text if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def answers(sock: socket.socket) -> bytes:
    """Return what the receiver has sent to the sender, read until it closes."""
    data = b""
    with contextlib.suppress(OSError):  # closed by send_message, or by a receiver that left something unread
        while part := socket.socket.recv(sock, 4096):
            data += part
    return data


def shut(sock: socket.socket) -> None:
    """Shut down sending, unless that has already happened."""
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        sock.close()


def torn_bytes(learner: ModuleType, message: bytes) -> bytes:
    """Return the bytes that the learner's code sends for a message."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = Narrow(fileno=socket.create_connection(listener.getsockname()).detach())
        theirs, _ = listener.accept()
    with ours, theirs:
        list(send_all(learner, ours, [message]))
        shut(ours)
        return theirs.makefile("rb").read()


def cuts(length: int, seed: int) -> list[int]:
    """Return the numbers of bytes after which to cut the connection: all of them, if there are few."""
    everywhere = range(1, length)
    return sorted(random.Random(seed).sample(everywhere, min(200, len(everywhere))))


def tear(learner: ModuleType, part: bytes, listener: socket.socket | None, address: Any) -> Any:
    """Return the receiver's result for a part of a message."""
    with connect(listener, address) as sock:
        if listener is None:
            return receive_all(learner, sock, 1)
        sock.sendall(part)
        shut(sock)
        return None
