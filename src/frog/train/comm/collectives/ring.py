"""Ring collectives: each rank sends to the next and receives from the previous one, so all links carry the same load.

    all_reduce = reduce_scatter, then all_gather. With n = 4 ranks, part p of each rank, and r sending to r + 1:

    step 0   r sends part r        and adds the received part r-1 to its own
    step 1   r sends part r-1      and adds part r-2
    step 2   r sends part r-2      and adds part r-3: part r+1 is now the sum of all ranks
    step 3   r sends part r+1      and receives part r
    ...                            until every rank has all parts

Each part is split into pieces. A piece is forwarded as soon as it is summed, so a rank sends and receives all the
time, and a piece is still in the cache when it is sent.

S is the size of the buffer in bytes; each part has S/n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frog.train.comm.collectives.arithmetic import Buffer, Reduction
from frog.train.comm.collectives.connection import Mesh
from frog.train.comm.collectives.exchange import bytes_of, pieces
from frog.train.comm.collectives.frames import DATA


def all_reduce(mesh: Mesh, seq: int, tag: int, parts: Sequence[Buffer], reduction: Reduction) -> None:
    """Sum `parts`, the slices of one buffer, over all ranks, in place.

    Comm:    2(n-1) steps; each rank sends 2(n-1)/n S bytes.
    Equals:  the same sum on every rank, bit for bit: part p is summed once, by the ranks p, p+1, ... in turn.
    """
    rank, size = mesh.rank, mesh.size
    after, before = mesh.connections[(rank + 1) % size], mesh.connections[(rank - 1) % size]
    room = np.empty(max(len(piece) for part in parts for piece in pieces(part)), parts[0].dtype)

    def expect(piece: Buffer, step: int) -> None:
        def arrived() -> None:
            if step < size:
                reduction.combine(piece, target, piece)
            if step == size - 1:
                reduction.finish(piece)
            if step < 2 * size - 2:
                after.send(DATA, seq, bytes_of(piece), tag)

        target = room[: len(piece)] if step < size else piece
        before.receive(DATA, seq, bytes_of(target), tag, arrived)

    for piece in pieces(parts[rank]):
        after.send(DATA, seq, bytes_of(piece), tag)
    for step in range(1, 2 * size - 1):
        for piece in pieces(parts[(rank - step) % size]):
            expect(piece, step)
    mesh.complete()


def all_gather(mesh: Mesh, seq: int, tag: int, parts: Sequence[Buffer]) -> None:
    """Fill `parts`; each rank already has its own part.

    Comm:    n - 1 steps; each rank sends (n-1)/n S bytes.
    """
    rank, size = mesh.rank, mesh.size
    after, before = mesh.connections[(rank + 1) % size], mesh.connections[(rank - 1) % size]

    def expect(piece: Buffer, passes_on: bool) -> None:
        def arrived() -> None:
            if passes_on:
                after.send(DATA, seq, bytes_of(piece), tag)

        before.receive(DATA, seq, bytes_of(piece), tag, arrived)

    for piece in pieces(parts[rank]):
        after.send(DATA, seq, bytes_of(piece), tag)
    for step in range(1, size):
        for piece in pieces(parts[(rank - step) % size]):
            expect(piece, passes_on=step < size - 1)
    mesh.complete()
