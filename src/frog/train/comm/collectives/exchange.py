"""Collectives without a ring: direct exchange between all ranks, or along a tree.

The cost of a small message is its latency, not its size: the number of steps matters, not the number of bytes. n is
the number of ranks, S the size of the buffer in bytes; a step is the time that a message takes from rank to rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from frog.train.comm.collectives.arithmetic import Buffer, Reduction
from frog.train.comm.collectives.connection import Bytes, Mesh
from frog.train.comm.collectives.frames import DATA

PIECE_BYTES = 512 << 10
"""Payload of one frame: it stays in the cache between the socket and the sum."""


def bytes_of(x: Buffer) -> Bytes:
    """Return the memory of a contiguous buffer."""
    return x.view(np.uint8).data if len(x) else memoryview(bytearray())


def cuts(num_elements: int, num_parts: int) -> list[slice]:
    """Return `num_parts` slices whose lengths differ by at most one element."""
    ends = [num_elements * part // num_parts for part in range(num_parts + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def pieces(x: Buffer, most_bytes: int = PIECE_BYTES) -> list[Buffer]:
    """Split `x` into pieces of at most `most_bytes`; one empty piece if `x` is empty."""
    step = max(1, most_bytes // x.itemsize)
    return [x[begin : begin + step] for begin in range(0, max(len(x), 1), step)]


def all_reduce(mesh: Mesh, seq: int, tag: int, x: Buffer, reduction: Reduction) -> None:
    """Recursive doubling: after step k each rank has the sum of the 2^k ranks around it.

    Ranks beyond the largest power of two first send their values to a partner, and get the result at the end.

    Comm:    log2(n) steps, two more if n is not a power of two; each rank sends S bytes per step.
    Equals:  the same sum on every rank, bit for bit: a + b and b + a are the same number.
    """
    power = 1 << (mesh.size.bit_length() - 1)
    extra = mesh.rank + power if mesh.rank + power < mesh.size else None
    came = np.empty_like(x)
    if mesh.rank >= power:
        partner = mesh.connections[mesh.rank - power]
        partner.send(DATA, seq, bytes_of(x), tag)
        mesh.complete()
        partner.receive(DATA, seq, bytes_of(x), tag)
        mesh.complete()
        return
    if extra is not None:
        mesh.connections[extra].receive(DATA, seq, bytes_of(came), tag)
        mesh.complete()
        reduction.combine(x, came, x)
    distance = 1
    while distance < power:
        partner = mesh.connections[mesh.rank ^ distance]
        partner.send(DATA, seq, bytes_of(x), tag)
        partner.receive(DATA, seq, bytes_of(came), tag)
        mesh.complete()
        reduction.combine(x, came, x)
        distance *= 2
    reduction.finish(x)
    if extra is not None:
        mesh.connections[extra].send(DATA, seq, bytes_of(x), tag)
        mesh.complete()


def reduce_scatter(mesh: Mesh, seq: int, tag: int, parts: Sequence[Buffer], out: Buffer, reduction: Reduction) -> None:
    """Receive this rank's part from every rank, and sum the parts in rank order: `out` = sum of all `parts[rank]`.

    The parts travel in pieces, so that memory holds at most two pieces per peer.

    Comm:    one step; each rank sends (n-1)/n S bytes.
    """
    mine = pieces(out)
    own = pieces(parts[mesh.rank])
    room = np.empty((2, mesh.size, len(mine[0])), out.dtype)
    missing = [mesh.size - 1] * len(mine)

    def expect(number: int) -> None:
        for peer in mesh.others:
            target = room[number % 2, peer, : len(mine[number])]
            mesh.connections[peer].receive(DATA, seq, bytes_of(target), tag, lambda: arrived(number))

    def arrived(number: int) -> None:
        missing[number] -= 1
        if missing[number]:
            return
        rows = room[number % 2, :, : len(mine[number])]
        terms = [own[number] if rank == mesh.rank else rows[rank] for rank in range(mesh.size)]
        reduction.total(terms, mine[number], rows[mesh.rank])  # this rank's own row is otherwise unused
        if number + 2 < len(mine):
            expect(number + 2)

    for peer in mesh.others:
        for piece in pieces(parts[peer]):
            mesh.connections[peer].send(DATA, seq, bytes_of(piece), tag)
    for number in range(min(2, len(mine))):
        expect(number)
    mesh.complete()


def all_gather(mesh: Mesh, seq: int, tag: int, parts: Sequence[Buffer]) -> None:
    """Fill `parts`; each rank already has its own part.

    Comm:    one step; each rank sends n - 1 messages of S/n bytes.
    """
    all_to_all(mesh, seq, tag, [parts[mesh.rank]] * mesh.size, parts)


def all_to_all(mesh: Mesh, seq: int, tag: int, leave: Sequence[Buffer], arrive: Sequence[Buffer]) -> None:
    """Send `leave[i]` to rank i, and receive `arrive[i]` from it. The caller copies its own part.

    Parts are not split into pieces, since none is summed or forwarded: a frame costs about 30 us of processor time.

    Comm:    one step; each rank sends the parts of `leave` that belong to other ranks.
    """
    for peer in mesh.others:
        mesh.connections[peer].send(DATA, seq, bytes_of(leave[peer]), tag)
    for peer in reversed(mesh.others):
        mesh.connections[peer].receive(DATA, seq, bytes_of(arrive[peer]), tag)
    mesh.complete()


def gather(mesh: Mesh, seq: int, tag: int, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
    """Collect each rank's `x` in `root`'s `parts`. Comm: one step; each rank sends S bytes."""
    if mesh.rank != root:
        mesh.connections[root].send(DATA, seq, bytes_of(x), tag)
    for peer in mesh.others if parts is not None else ():
        assert parts is not None
        mesh.connections[peer].receive(DATA, seq, bytes_of(parts[peer]), tag)
    mesh.complete()


def scatter(mesh: Mesh, seq: int, tag: int, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
    """Set `x` to this rank's element of `root`'s `parts`. Comm: one step; root sends n - 1 messages of S bytes."""
    for peer in mesh.others if parts is not None else ():
        assert parts is not None
        mesh.connections[peer].send(DATA, seq, bytes_of(parts[peer]), tag)
    if mesh.rank != root:
        mesh.connections[root].receive(DATA, seq, bytes_of(x), tag)
    mesh.complete()


def broadcast(mesh: Mesh, seq: int, tag: int, x: Buffer, root: int) -> None:
    """Copy `root`'s `x` to all ranks along a binomial tree; each piece is forwarded as soon as it arrives.

    In step k, each rank that has the buffer sends it to the rank 2^k after it, counted from root.

    Comm:    log2(n) steps; each rank sends at most log2(n) S bytes.
    """
    own = (mesh.rank - root) % mesh.size
    above = own & (own - 1)  # without its lowest bit: the rank that sends to this one
    lowest = own & -own or 1 << mesh.size.bit_length()
    below = [
        own | bit for bit in (1 << k for k in range(mesh.size.bit_length())) if bit < lowest and own | bit < mesh.size
    ]
    children = [mesh.connections[(child + root) % mesh.size] for child in reversed(below) if child != own]

    def pass_on(piece: Buffer) -> None:
        for child in children:
            child.send(DATA, seq, bytes_of(piece), tag)

    for piece in pieces(x):
        if own == 0:
            pass_on(piece)
        else:
            parent = mesh.connections[(above + root) % mesh.size]
            parent.receive(DATA, seq, bytes_of(piece), tag, lambda piece=piece: pass_on(piece))  # type: ignore[misc]
    mesh.complete()
