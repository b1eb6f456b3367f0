"""Without a ring: everybody with everybody, or along a tree.

What costs of a small message is its way, not its size: a few steps count, not a few bytes. n is the number of ranks,
S the bytes of the buffer; a step is the time that a message takes from rank to rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from frog.comm.collectives.arithmetic import Buffer, Reduction
from frog.comm.collectives.connection import Bytes, Mesh
from frog.comm.collectives.frames import DATA

PIECE_BYTES = 512 << 10
"""What travels as one frame: it stays in the cache between the socket and the sum."""


def bytes_of(x: Buffer) -> Bytes:
    """The memory of a contiguous buffer."""
    return x.view(np.uint8).data if len(x) else memoryview(bytearray())


def cuts(num_elements: int, num_parts: int) -> list[slice]:
    """`num_parts` slices that differ by at most one element."""
    ends = [num_elements * part // num_parts for part in range(num_parts + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def pieces(x: Buffer, most_bytes: int = PIECE_BYTES) -> list[Buffer]:
    """`x` in pieces of at most so many bytes; at least one, of no elements if `x` has none."""
    step = max(1, most_bytes // x.itemsize)
    return [x[begin : begin + step] for begin in range(0, max(len(x), 1), step)]


def all_reduce(mesh: Mesh, seq: int, tag: int, x: Buffer, reduction: Reduction) -> None:
    """Recursive doubling: after step k each rank has the sum of the 2^k ranks around it.

    Ranks beyond the largest power of two give theirs to a partner first and get the result at the end.

    Comm:    log2(n) steps, two more where n is no power of two; S bytes leave each rank in a step.
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
    """Each rank gets everybody's part for it, and sums them in order of ranks: `out` = sum of all `parts[rank]`.

    Piece by piece, so that no more is in memory than two pieces of each peer.

    Comm:    one step; (n-1)/n S bytes leave each rank.
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
        reduction.total(terms, mine[number], rows[mesh.rank])  # nobody else fills this rank's own row
        if number + 2 < len(mine):
            expect(number + 2)

    for peer in mesh.others:
        for piece in pieces(parts[peer]):
            mesh.connections[peer].send(DATA, seq, bytes_of(piece), tag)
    for number in range(min(2, len(mine))):
        expect(number)
    mesh.complete()


def all_gather(mesh: Mesh, seq: int, tag: int, parts: Sequence[Buffer]) -> None:
    """Fill `parts`, of which each rank has its own one.

    Comm:    one step; n - 1 messages of S/n bytes leave each rank.
    """
    all_to_all(mesh, seq, tag, [parts[mesh.rank]] * mesh.size, parts)


def all_to_all(mesh: Mesh, seq: int, tag: int, leave: Sequence[Buffer], arrive: Sequence[Buffer]) -> None:
    """Send `leave[i]` to rank i, whose own for this rank comes into `arrive[i]`. The caller copies its own part.

    Whole, since nothing is added to a part or passed on: a frame costs some 30 us of a processor.

    Comm:    one step; what `leave` has for others leaves.
    """
    for peer in mesh.others:
        mesh.connections[peer].send(DATA, seq, bytes_of(leave[peer]), tag)
    for peer in reversed(mesh.others):
        mesh.connections[peer].receive(DATA, seq, bytes_of(arrive[peer]), tag)
    mesh.complete()


def gather(mesh: Mesh, seq: int, tag: int, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
    """`root` gets everybody's `x` into its `parts`. Comm: one step; S bytes leave each rank."""
    if mesh.rank != root:
        mesh.connections[root].send(DATA, seq, bytes_of(x), tag)
    for peer in mesh.others if parts is not None else ():
        assert parts is not None
        mesh.connections[peer].receive(DATA, seq, bytes_of(parts[peer]), tag)
    mesh.complete()


def scatter(mesh: Mesh, seq: int, tag: int, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
    """Everybody gets its own of `root`'s `parts` into `x`. Comm: one step; n - 1 messages of S bytes leave root."""
    for peer in mesh.others if parts is not None else ():
        assert parts is not None
        mesh.connections[peer].send(DATA, seq, bytes_of(parts[peer]), tag)
    if mesh.rank != root:
        mesh.connections[root].receive(DATA, seq, bytes_of(x), tag)
    mesh.complete()


def broadcast(mesh: Mesh, seq: int, tag: int, x: Buffer, root: int) -> None:
    """Give everybody `root`'s `x`, along a binomial tree, each piece passed on as it comes.

    In step k whoever has the buffer sends it to the rank 2^k after it, counted from root.

    Comm:    log2(n) steps; at most log2(n) S bytes leave a rank.
    """
    own = (mesh.rank - root) % mesh.size
    above = own & (own - 1)  # without its lowest bit: who sends to this one
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
