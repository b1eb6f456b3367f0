"""A group of ranks and its collectives. Buffers are contiguous one-dimensional numpy arrays.

Every rank calls the same collectives in the same order. Results are the same on all ranks, bit for bit. The choice of
algorithm and transport depends on sizes and on which ranks share a machine, never on a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from frog.core.runs.observer import operation
from frog.train.comm.collectives import exchange, ring
from frog.train.comm.collectives.arithmetic import Buffer, Reduction
from frog.train.comm.collectives.connection import Connection, Mesh
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.errors import Alarm, PeerClosed
from frog.train.comm.collectives.exchange import cuts
from frog.train.comm.collectives.messages import Messages
from frog.train.comm.collectives.rendezvous import Book, Peer, Place, meet
from frog.train.comm.collectives.shared_memory import SMALL_BYTES, Segment, create, usable

OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier",
)  # fmt: skip
_TAGS = {name: number for number, name in enumerate(OPERATIONS)}
_TEXT_BYTES = 256


class Group:
    """A set of ranks, seen from one of them."""

    def __init__(
        self,
        rank: int,
        peers: Sequence[Peer],
        connections: dict[int, Connection],
        messages: Messages,
        timeout_s: float,
        costs: Costs,
        memory: bool,
        alarms: Sequence[Connection] = (),
    ) -> None:
        """peers: all ranks, in order. alarms: connections that are silent unless something is wrong."""
        self.rank, self.size, self.peers, self.costs = rank, len(peers), peers, costs
        self.mesh = Mesh(rank, self.size, connections, timeout_s, alarms)
        self.messages = messages
        self._seq = 0
        self._shared = False
        by_node: dict[str, list[int]] = {}
        for peer in peers:
            by_node.setdefault(peer.node, []).append(peer.rank)
        self._nodes = list(by_node.values())
        self._local = by_node[peers[rank].node]
        self.segment = self._share() if memory and self.size > len(self._nodes) else None

    @operation("entry")
    def _share(self) -> Segment | None:
        """Map the memory that the ranks of this node share; None for a single rank, or if any node lacks memory."""
        heads = [ranks[0] for ranks in self._nodes if len(ranks) > 1]
        path = create(len(self._local)) if self.rank in heads else None
        try:
            names = self._tell_all(str(path or ""))
            if not all(names[head] for head in heads):
                return None
            self._shared = True
            if len(self._local) == 1:
                return None
            own = self._local.index(self.rank)
            name = Path(names[self._local[0]])
            segment = Segment(name, own, len(self._local), self.mesh.timeout_s, self.look)
            segment.commit()
            return segment
        finally:
            if path is not None:
                path.unlink()

    def _tell_all(self, text: str) -> list[str]:
        """Exchange a short text; return every rank's, in rank order."""
        rows = [np.zeros(_TEXT_BYTES, np.uint8) for _ in range(self.size)]
        data = text.encode()
        rows[self.rank][: len(data)] = np.frombuffer(data, np.uint8)
        self._seq += 1
        exchange.all_gather(self.mesh, self._seq, _TAGS["all_gather"], rows)
        return [row.tobytes().rstrip(b"\0").decode() for row in rows]

    def look(self) -> None:
        """Raise PeerClosed if a rank of this node has closed its connection, Alarm if an alarm has been raised.

        A rank of another node may leave after the last collective, before this node's first rank has passed on its
        result; if it leaves too early, that first rank fails.
        """
        for rank in self._local:
            if rank != self.rank and self.mesh.connections[rank].has_left():
                raise PeerClosed(self.mesh.connections[rank].peer)
        for alarm in self.mesh.alarms:
            if alarm.can_be_read():
                raise Alarm(alarm.peer)

    @property
    def _whole(self) -> Segment | None:
        """The segment, if all ranks of the group share it."""
        return self.segment if len(self._nodes) == 1 else None

    @operation("all_reduce")
    def all_reduce(self, x: Buffer, op: str = "sum") -> None:
        """Sum `x` over all ranks in place (or: avg, min, max, product, ...)."""
        self._seq += 1
        reduction = Reduction(op, x.dtype, self.size)
        if self.size == 1 or not len(x):
            return
        if self._whole is not None:
            self._in_memory(self._whole, x, reduction)
        elif self._shared and len(self._nodes) < self.size:
            self._by_nodes(x, op)
        else:
            self._over_network(self.mesh, x, reduction)

    def _in_memory(self, segment: Segment, x: Buffer, reduction: Reduction) -> None:
        if x.nbytes <= SMALL_BYTES:
            segment.all_reduce_small(x, reduction)
        elif segment.size == 2:
            segment.all_reduce_of_two(x, reduction)
        else:
            segment.all_reduce(x, reduction)

    def _over_network(self, mesh: Mesh, x: Buffer, reduction: Reduction) -> None:
        tag = _TAGS["all_reduce"]
        if self.costs.takes_ring(x.nbytes, mesh.size):
            ring.all_reduce(mesh, self._seq, tag, [x[cut] for cut in cuts(len(x), mesh.size)], reduction)
        else:
            exchange.all_reduce(mesh, self._seq, tag, x, reduction)

    def _by_nodes(self, x: Buffer, op: str) -> None:
        """Reduce within each node through memory, between the first ranks of the nodes over the network, and copy back.

        Comm:    each of m nodes sends 2(m-1)/m S bytes, regardless of its number of ranks.
        """
        if self.segment is not None:
            self._in_memory(self.segment, x, Reduction("sum" if op == "avg" else op, x.dtype, len(self._local)))
        if self.rank == self._local[0]:
            self._over_network(self._leaders, x, Reduction(op, x.dtype, self.size))
        if self.segment is not None:
            self.segment.broadcast(x, 0)

    @property
    def _leaders(self) -> Mesh:
        leaders = [node[0] for node in self._nodes]
        connections = {index: self.mesh.connections[rank] for index, rank in enumerate(leaders) if rank != self.rank}
        return Mesh(leaders.index(self.rank), len(leaders), connections, self.mesh.timeout_s)

    @operation("all_gather")
    def all_gather(self, parts: Sequence[Buffer], x: Buffer) -> None:
        """Fill `parts` with each rank's `x`, in rank order. All have the same size."""
        self._seq += 1
        parts[self.rank][:] = x
        if self.size == 1 or not len(x):
            return
        if self._whole is not None:
            self._whole.all_gather(parts)
        elif self.costs.takes_ring(x.nbytes * self.size, self.size):
            ring.all_gather(self.mesh, self._seq, _TAGS["all_gather"], parts)
        else:
            exchange.all_gather(self.mesh, self._seq, _TAGS["all_gather"], parts)

    @operation("reduce_scatter")
    def reduce_scatter(self, out: Buffer, parts: Sequence[Buffer], op: str = "sum") -> None:
        """Set `out` to the sum of all ranks' `parts[rank]`, in rank order. All have the same size."""
        self._seq += 1
        reduction = Reduction(op, out.dtype, self.size)
        if self.size == 1:
            out[:] = parts[0]
        elif not len(out):
            return
        elif self._whole is not None:
            self._whole.reduce_scatter(parts, out, reduction)
        else:
            exchange.reduce_scatter(self.mesh, self._seq, _TAGS["reduce_scatter"], parts, out, reduction)

    @operation("broadcast")
    def broadcast(self, x: Buffer, root: int) -> None:
        """Copy `root`'s `x` to all ranks."""
        self._seq += 1
        if self.size == 1 or not len(x):
            return
        if self._whole is not None:
            self._whole.broadcast(x, root)
        else:
            exchange.broadcast(self.mesh, self._seq, _TAGS["broadcast"], x, root)

    @operation("reduce")
    def reduce(self, x: Buffer, root: int, op: str = "sum") -> None:
        """Set `root`'s `x` to the sum over all ranks, in rank order; the other ranks' `x` does not change.

        Comm:    a reduce-scatter and a gather: each rank sends (n-1)/n S bytes, and each but root S/n more.
        """
        self._seq += 1
        reduction = Reduction(op, x.dtype, self.size)
        if self.size == 1 or not len(x):
            return
        step = -(-len(x) // self.size)
        padded = np.zeros(step * self.size, x.dtype)
        padded[: len(x)] = x
        parts = list(padded.reshape(self.size, step))
        own = np.empty(step, x.dtype)
        if self._whole is not None:
            self._whole.reduce_scatter(parts, own, reduction)
        else:
            exchange.reduce_scatter(self.mesh, self._seq, _TAGS["reduce"], parts, own, reduction)
        parts[self.rank][:] = own
        exchange.gather(self.mesh, self._seq, _TAGS["reduce"], own, parts if self.rank == root else None, root)
        if self.rank == root:
            x[:] = padded[: len(x)]

    @operation("gather")
    def gather(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """Collect each rank's `x` in `root`'s `parts`."""
        self._seq += 1
        if parts is not None:
            parts[self.rank][:] = x
        exchange.gather(self.mesh, self._seq, _TAGS["gather"], x, parts, root)

    @operation("scatter")
    def scatter(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """Set `x` to this rank's element of `root`'s `parts`."""
        self._seq += 1
        if parts is not None:
            x[:] = parts[self.rank]
        exchange.scatter(self.mesh, self._seq, _TAGS["scatter"], x, parts, root)

    @operation("all_to_all")
    def all_to_all(self, arrive: Sequence[Buffer], leave: Sequence[Buffer], even: bool = False) -> None:
        """Set `arrive[i]` to rank i's `leave[rank]`. even: the caller guarantees that all have the same size."""
        self._seq += 1
        arrive[self.rank][:] = leave[self.rank]
        if self.size == 1:
            return
        if even and self._whole is not None and len(leave[0]):
            self._whole.all_to_all(leave, arrive)
        else:
            exchange.all_to_all(self.mesh, self._seq, _TAGS["all_to_all"], leave, arrive)

    @operation("barrier")
    def barrier(self) -> None:
        """Return once every rank has called this."""
        self.all_reduce(np.zeros(1, np.uint8))

    def close(self) -> None:
        """Close all connections."""
        self.messages.close()
        for connection in self.mesh.connections.values():
            connection.close()


def open_group(
    book: Book,
    rank: int,
    size: int,
    name: str = "world",
    secret: bytes = b"",
    host: str = "127.0.0.1",
    node: str = "",
    timeout_s: float = 60.0,
    costs: Costs | None = None,
    memory: bool | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Group:
    """Find the other ranks and open two connections to each of them: for collectives, and for messages.

    node: ranks with the same node name share memory, if the machine supports it and `memory` is not false.
    report: called with a line for each caller that failed to authenticate.

    Raises:  CollectiveError if a rank is missing after `timeout_s`.
    """
    key = secret or b"frog"
    peers: list[Peer] = []
    meshes: list[dict[int, Connection]] = []
    for use in ("collectives", "messages"):
        place = Place(rank, size, f"{name} {use}", key, host, node)
        try:
            peers, connections = meet(place, Prefixed(book, use), timeout_s)
        finally:
            place.close()
            for line in place.refused:
                report(line)
        meshes.append(connections)
    if rank == 0:
        shares = usable() if memory is None else memory and usable()
        book.set("costs", (costs or Costs()).to_text())
        book.set("memory", "yes" if shares else "no")
    shares = size > 1 and book.get("memory") == b"yes"
    agreed = Costs.from_text(book.get("costs"))
    return Group(rank, peers, meshes[0], Messages(meshes[1], timeout_s), timeout_s, agreed, shares)


class Prefixed:
    """A namespace within a book."""

    def __init__(self, book: Book, prefix: str) -> None:
        self._book, self._prefix = book, prefix

    def set(self, key: str, value: str) -> None:
        self._book.set(f"{self._prefix} {key}", value)

    def get(self, key: str) -> bytes:
        return self._book.get(f"{self._prefix} {key}")
