"""Two processes, and a real TCP connection between them for each case."""

import random
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch.distributed as dist

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Narrow(socket.socket):
    """A real socket as on a busy network: its first call takes, or gives, one byte, later ones at most 7."""

    gives: Iterator[int] | None = None
    takes: Iterator[int] | None = None

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return super().recv(self.narrowed(bufsize, flags), flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, self.narrowed(nbytes or memoryview(buffer).nbytes, flags), flags)

    def send(self, data: Any, flags: int = 0) -> int:
        if self.takes is None:
            return super().send(data, flags)
        return super().send(memoryview(data).cast("B")[: next(self.takes)], flags)

    def narrowed(self, size: int, flags: int) -> int:
        wide = self.gives is None or flags & socket.MSG_WAITALL
        return size if wide else min(size, next(self.gives))


def few(seed: int) -> Iterator[int]:
    numbers = random.Random(seed)
    yield 1
    while True:
        yield numbers.randint(1, 7)


def make_messages(seed: int) -> dict[str, list[bytes]]:
    """The messages of each case, by name: all but `torn` are to arrive; of `torn` the connection carries a part."""
    numbers = random.Random(seed)
    some = ["".join(numbers.choices(LETTERS, k=numbers.randint(20, 60))).encode() for _ in range(5)]
    marks = b"\n\r\n\0\xff%04d<end>EOF %d\n" % (numbers.randint(0, 99), numbers.randint(0, 99))
    return {
        "waiting": some,
        "slow receiver": some[:3],
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
        "large": [numbers.randbytes(300_000 + numbers.randint(0, 9999)), b"after", numbers.randbytes(70_000)],
        "torn": [some[4]],
    }


def with_marks(wire: bytes, message: bytes) -> list[bytes]:
    """Messages that hold what the learner's code puts on the wire before and after a message."""
    before, found, after = wire.partition(message)
    if not found:
        return []
    return [message[:9] + after + message[9:], after, message + after, before + message, after + before, wire]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Rank 0 sends, rank 1 receives. Each case ends with the sender closing its side."""
    found: dict[str, Any] = {}
    listener = socket.create_server(("127.0.0.1", 0)) if dist.get_rank() == 0 else None
    address = [listener.getsockname() if listener else None]
    dist.broadcast_object_list(address, src=0)
    for name, messages in make_messages(case["seed"]).items():
        if name != "torn":
            found[name] = exchange(learner, case["seed"], name, messages, listener, address[0])
    torn = [torn_bytes(learner, make_messages(case["seed"])["torn"][0]) if listener else None]
    dist.broadcast_object_list(torn, src=0)
    found["on the wire"], found["torn"] = torn[0], []
    own = with_marks(torn[0], make_messages(case["seed"])["torn"][0])
    found["its own marks"] = exchange(learner, case["seed"], "its own marks", own, listener, address[0])
    for cut in cuts(len(torn[0]), case["seed"]):
        found["torn"].append([cut, tear(learner, torn[0][:cut], listener, address[0])])
    return found


def connect(listener: socket.socket | None, address: Any) -> Narrow:
    """One end of a new connection: the listener's, or the other's."""
    if listener is None:
        end = socket.create_connection(tuple(address))
    else:
        end, _ = listener.accept()
    end.settimeout(None)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # so that a large message does not fit
        end.setsockopt(socket.SOL_SOCKET, buffer, 1 << 15)
    return Narrow(fileno=end.detach())


def exchange(
    learner: ModuleType, seed: int, name: str, messages: list[bytes], listener: socket.socket | None, address: Any
) -> Any:
    """What the sender says of each message, or what the receiver got, until it was None, an error, or one too many."""
    with connect(listener, address) as sock:
        if name == "slow receiver":
            sock.gives = few(seed)
        if name == "slow sender":
            sock.takes = few(seed)
        if listener is None:
            if name == "waiting":
                dist.barrier()  # by now all of it waits in this end's buffer
            return receive_all(learner, sock, len(messages) + 1)
        sent = list(send_all(learner, sock, messages))
        shut(sock)
        if name == "waiting":
            dist.barrier()
        return sent


def send_all(learner: ModuleType, sock: socket.socket, messages: list[bytes]) -> Iterator[str]:
    """For each message the error that sending it raised, or nothing; ends at the first."""
    for message in messages:
        try:
            learner.send_message(sock, message)
        except NotImplementedError:
            raise
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
            return
        yield ""


def receive_all(learner: ModuleType, sock: socket.socket, most: int) -> list[Any]:
    """Messages; last None, or an error as [its kind, its text]."""
    received: list[Any] = []
    while len(received) < most:
        try:
            message = learner.receive_message(sock)
        except NotImplementedError:
            raise
        except ConnectionError as error:
            return [*received, ["ConnectionError", f"{type(error).__name__}: {error}"]]
        except Exception as error:
            return [*received, ["other", f"{type(error).__name__}: {error}"]]
        received.append(bytes(message) if isinstance(message, bytearray | memoryview) else message)
        if message is None:
            break
    return received


def shut(sock: socket.socket) -> None:
    """Say that nothing more comes, unless that was said already."""
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        sock.close()


def torn_bytes(learner: ModuleType, message: bytes) -> bytes:
    """What the learner's code puts on the wire for a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        learner.send_message(ours, message)
        shut(ours)
        return theirs.makefile("rb").read()


def cuts(length: int, seed: int) -> list[int]:
    """Where the connection is cut: after the first byte, before the last, in between."""
    return sorted({1, 2, random.Random(seed).randint(10, length - 2), length - 1} & set(range(1, length)))


def tear(learner: ModuleType, part: bytes, listener: socket.socket | None, address: Any) -> Any:
    """What the receiver makes of a part of a message."""
    with connect(listener, address) as sock:
        if listener is None:
            return receive_all(learner, sock, 1)
        sock.sendall(part)
        shut(sock)
        return None
