"""A peer: all-reduce over a ring of TCP connections. What it is given, and how, is in docs/peers.md."""

import os
import select
import socket
import struct
import sys
from array import array
from operator import add
from pathlib import Path

TYPES = {1: "f", 2: "d", 3: "i", 4: "q"}
RANK, WORLD = int(os.environ["PEER_RANK"]), int(os.environ["PEER_WORLD"])
TIMEOUT_S = float(os.environ["PEER_TIMEOUT_S"])
RIGHT, LEFT = (RANK + 1) % WORLD, (RANK - 1) % WORLD


class Lost(Exception):
    """A peer has gone, or was silent for too long: its rank."""


def connect() -> tuple[socket.socket, socket.socket]:
    """Connect to the right neighbour, and be connected to by the left one."""
    addresses = [address.split(":") for address in os.environ["PEER_ADDRESSES"].split(",")]
    listener = socket.create_server(("127.0.0.1", int(addresses[RANK][1])))
    listener.settimeout(TIMEOUT_S)
    right = socket.create_connection((addresses[RIGHT][0], int(addresses[RIGHT][1])))
    right.setblocking(False)
    return right, listener.accept()[0]


def exchange(right: socket.socket, left: socket.socket, out: bytes, size: int) -> bytes:
    """Send to the right and receive `size` bytes from the left at once, so that nobody waits for the other's turn."""
    view, come, sent, got = memoryview(out), bytearray(size), 0, 0
    while sent < len(out) or got < size:
        lost = LEFT if got < size else RIGHT
        readers, writers = [left] if got < size else [], [right] if sent < len(out) else []
        try:
            readable, writable, _ = select.select(readers, writers, [], TIMEOUT_S)
            if writable:
                lost = RIGHT
                sent += right.send(view[sent:])
            if readable:
                lost = LEFT
                got += (count := left.recv_into(memoryview(come)[got:]))
        except OSError:
            raise Lost(lost) from None
        if (readable and count == 0) or not (readable or writable):
            raise Lost(lost)
    return bytes(come)


def all_reduce(right: socket.socket, left: socket.socket, values: array) -> None:
    """Replace `values` by their sum over all ranks: reduce-scatter, then all-gather, n - 1 steps each."""
    part = [slice(i * len(values) // WORLD, (i + 1) * len(values) // WORLD) for i in range(WORLD)]
    for step in range(2 * (WORLD - 1)):
        give, take = part[(RANK - step) % WORLD], part[(RANK - step - 1) % WORLD]
        size = (take.stop - take.start) * values.itemsize
        come = array(values.typecode, exchange(right, left, values[give].tobytes(), size))
        values[take] = array(values.typecode, map(add, values[take], come)) if step < WORLD - 1 else come


def main() -> None:
    right, left = connect()
    for line in Path(os.environ["PEER_CALLS"]).read_text().splitlines():
        operation, _root, source, target = line.split("\t")
        if operation != "all_reduce":
            sys.exit(3)
        data = Path(source).read_bytes()
        values = array(TYPES[struct.unpack_from("<Q", data, 8)[0]], data[24:])
        all_reduce(right, left, values)
        Path(target + ".part").write_bytes(data[:24] + values.tobytes())
        os.replace(target + ".part", target)


try:
    main()
except (Lost, OSError) as problem:
    sys.exit(f"lost {problem}")
