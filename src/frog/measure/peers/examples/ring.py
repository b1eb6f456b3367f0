"""A peer: all-reduce over a ring of TCP connections. docs/measure/collectives.md describes its inputs."""

import os
import sys
from array import array
from operator import add
from pathlib import Path
from select import select
from socket import create_connection, create_server, socket

TYPES = {1: "f", 2: "d", 3: "i", 4: "q"}
RANK, WORLD = int(os.environ["PEER_RANK"]), int(os.environ["PEER_WORLD"])
TIMEOUT_S = float(os.environ["PEER_TIMEOUT_S"])
RIGHT, LEFT = (RANK + 1) % WORLD, (RANK - 1) % WORLD


def exchange(right: socket, left: socket, out: bytes, size: int) -> bytes:
    """Send to the right and receive `size` bytes from the left concurrently, so that neither side blocks the other."""
    rest, come = memoryview(out), bytearray()
    while rest or len(come) < size:
        readable, writable, _ = select([left] * (len(come) < size), [right] * bool(rest), [], TIMEOUT_S)
        peer = RIGHT if writable or len(come) == size else LEFT
        try:
            if writable:
                rest = rest[right.send(rest) :]
            elif readable and (data := left.recv(min(size - len(come), 1 << 20))):
                come += data
            else:
                raise ConnectionError("the peer was silent for too long, or closed the connection")
        except OSError:
            sys.exit(f"lost {peer}")
    return bytes(come)


def all_reduce(right: socket, left: socket, values: array) -> None:
    """Replace `values` with their sum over all ranks: reduce-scatter, then all-gather, n - 1 steps each."""
    part = [slice(i * len(values) // WORLD, (i + 1) * len(values) // WORLD) for i in range(WORLD)]
    for step in range(2 * (WORLD - 1)):
        give, take = part[(RANK - step) % WORLD], part[(RANK - step - 1) % WORLD]
        size = (take.stop - take.start) * values.itemsize
        come = array(values.typecode, exchange(right, left, values[give].tobytes(), size))
        values[take] = array(values.typecode, map(add, values[take], come)) if step < WORLD - 1 else come


addresses = [address.split(":") for address in os.environ["PEER_ADDRESSES"].split(",")]
listener = create_server(("127.0.0.1", int(addresses[RANK][1])))
listener.settimeout(TIMEOUT_S)
right = create_connection((addresses[RIGHT][0], int(addresses[RIGHT][1])))
right.setblocking(False)
left, _ = listener.accept()
for line in Path(os.environ["PEER_CALLS"]).read_text().splitlines():
    operation, _root, source, target = line.split("\t")
    if operation != "all_reduce":
        sys.exit(3)
    data = Path(source).read_bytes()
    values = array(TYPES[int.from_bytes(data[8:16], "little")], data[24:])
    all_reduce(right, left, values)
    Path(target + ".part").write_bytes(data[:24] + values.tobytes())
    os.replace(target + ".part", target)
