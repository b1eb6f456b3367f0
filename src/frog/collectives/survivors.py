"""A group that goes on when ranks are lost: the survivors of a collective agree on one verdict, and on who they are.

Beside the connections of the collectives, which are made anew for each epoch (a time between two losses), there is
one connection between each two ranks on which nothing is said as long as all is well. When a rank dies, the system
closes its ends, and everybody is woken; whoever else gives up speaks there. Either ends the collective under way on
every rank.

Then each rank proposes: who it thinks is left, how many collectives it has the result of, and where it can be called
next. A rank decides when all whom it thinks left have proposed just the same set. What it then knows is what each of
them knows:

    completed    the collectives of which all of them have the result. The one under way, if it is among them, ends
    well on every survivor. If it is not, every survivor gets its buffers back as they were, and WorldChanged.

No rank returns from a collective before all have its result: it ends with a barrier. So a verdict never takes back what
somebody has returned with.

A rank that is silent for `patience_s` while the others agree is left out, and told so should it ever wake. Those who
are left go on only if they are more than half of those who are not known to be dead, or half with the lowest rank
among them: two halves that cannot hear each other do not both go on.

Comm:    a barrier more per collective; a loss costs each rank a message to each other, and new connections.
Source:  Chandra and Toueg 1996 for what can be agreed on; the sets here are flooded until they are equal.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frog.collectives.arithmetic import Buffer
from frog.collectives.connection import Connection
from frog.collectives.cost import Costs
from frog.collectives.errors import CollectiveError, PeerClosed
from frog.collectives.frames import CONTROL
from frog.collectives.group import Group
from frog.collectives.messages import Messages
from frog.collectives.rendezvous import Book, Place, answer, call, meet

MOST_RANKS = 64
_PROPOSAL = struct.Struct("!?IQQQH")


class WorldChanged(CollectiveError):
    """The collective was not completed, its buffers are as they were. All who are left get this."""

    def __init__(self, members: Sequence[int], lost: Sequence[int]) -> None:
        names = ", ".join(map(str, lost))
        super().__init__(f"rank {names} of the group was lost; {len(members)} are left", "closed")
        self.members, self.lost = tuple(members), tuple(lost)


class LeftOut(CollectiveError):
    """The others go on without this rank, or it is among too few to go on."""


@dataclass(frozen=True)
class Proposal:
    """What a rank says of the next epoch."""

    is_last_word: bool
    """Said to a rank that is left out."""
    epoch: int
    alive: frozenset[int]
    completed: int
    """Collectives whose result it has; of a rank that has decided meanwhile, those that all had."""
    settled: int
    """Collectives that were agreed on as completed at the last decision."""
    port: int

    def pack(self) -> bytes:
        mask = sum(1 << rank for rank in self.alive)
        return _PROPOSAL.pack(self.is_last_word, self.epoch, mask, self.completed, self.settled, self.port)

    @staticmethod
    def unpack(data: bytes | bytearray) -> Proposal:
        last, epoch, mask, completed, settled, port = _PROPOSAL.unpack(data)
        alive = frozenset(rank for rank in range(MOST_RANKS) if mask >> rank & 1)
        return Proposal(last, epoch, alive, completed, settled, port)


class Survivors:
    """The collectives of a group whose ranks may be lost. `members` are the first ranks of those who are left."""

    def __init__(
        self,
        book: Book,
        rank: int,
        size: int,
        secret: bytes,
        host: str = "127.0.0.1",
        node: str = "",
        timeout_s: float = 60.0,
        patience_s: float = 2.0,
        costs: Costs | None = None,
        memory: bool = True,
    ) -> None:
        if size > MOST_RANKS:
            raise ValueError(f"{size} ranks: at most {MOST_RANKS} can agree")
        self.identity, self._secret = rank, secret
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._costs, self._memory = costs or Costs(), memory
        place = Place(rank, size, "survivors", secret, host, node)
        try:
            peers, self._lines = meet(place, book, timeout_s)
        finally:
            place.close()
        self._peers = {peer.rank: peer for peer in peers}
        self._rooms = {peer: bytearray(_PROPOSAL.size) for peer in self._lines}
        self._inbox: list[tuple[int, Proposal]] = []
        for peer in self._lines:
            self._listen(peer)
        self.members: tuple[int, ...] = tuple(range(size))
        self.epoch = self._completed = self._settled = 0
        self._dead: set[int] = set()
        self._news: WorldChanged | None = None
        self.group = self._regroup(timeout_s)

    @property
    def rank(self) -> int:
        return self.members.index(self.identity)

    @property
    def size(self) -> int:
        return len(self.members)

    def all_reduce(self, x: Buffer, op: str = "sum") -> None:
        """`x` of all ranks, summed in place. Raises WorldChanged."""
        self._attempt(lambda group: group.all_reduce(x, op), [x])

    def all_gather(self, parts: Sequence[Buffer], x: Buffer) -> None:
        """Fill `parts` with everybody's `x`, in order of ranks. Raises WorldChanged."""
        self._attempt(lambda group: group.all_gather(parts, x), parts)

    def reduce_scatter(self, out: Buffer, parts: Sequence[Buffer], op: str = "sum") -> None:
        """`out` becomes the sum of everybody's `parts[rank]`. Raises WorldChanged."""
        self._attempt(lambda group: group.reduce_scatter(out, parts, op), [out])

    def broadcast(self, x: Buffer, root: int) -> None:
        """Give everybody `root`'s `x`. Raises WorldChanged."""
        self._attempt(lambda group: group.broadcast(x, root), [x])

    def barrier(self) -> None:
        """Return when every rank is here. Raises WorldChanged."""
        self._attempt(lambda group: group.barrier(), [])

    def close(self) -> None:
        """Leave. To the others this is a loss, unless they leave too."""
        self.group.close()
        for line in self._lines.values():
            line.close()

    def _attempt(self, job: Callable[[Group], None], buffers: Sequence[Buffer]) -> None:
        """Carry out a collective: it is completed on all survivors, or undone on all of them."""
        if self._news is not None:
            news, self._news = self._news, None
            raise news
        before, number = [x.copy() for x in buffers], self._completed + 1
        try:
            with np.errstate(all="ignore"):
                job(self.group)
            self._completed = number
            self.group.barrier()
            return
        except CollectiveError as error:
            was = self.members
            self.group.close()
            self.group = self._regroup(self._patience_s if error.cause == "timed_out" else self._timeout_s)
        changed = WorldChanged(self.members, sorted(set(was) - set(self.members)))
        if self._completed >= number:
            self._news = changed
            return
        for x, old in zip(buffers, before, strict=True):
            x[:] = old
        raise changed

    def _regroup(self, patience_s: float) -> Group:
        """Agree on who is left, and connect to each of them; again if one is lost meanwhile."""
        while True:
            place = Place(self.identity, MOST_RANKS, f"epoch {self.epoch + 1}", self._secret, self._host, "")
            try:
                ports = self._agree(place, patience_s)
                return self._connect(place, ports)
            except (CollectiveError, OSError) as error:
                if isinstance(error, LeftOut):
                    raise
            finally:
                place.close()

    @property
    def _host(self) -> str:
        return self._peers[self.identity].host

    def _agree(self, place: Place, patience_s: float) -> dict[int, int]:
        """Return each survivor's port, once all have proposed the same. Sets what was completed, and members."""
        target, until_s = self.epoch + 1, time.monotonic() + patience_s
        alive = frozenset(self.members) - self._dead
        heard: dict[int, Proposal] = {}

        def missing(alive: frozenset[int]) -> frozenset[int]:
            """Who has not proposed just these."""
            return frozenset(p for p in alive - {self.identity} if p not in heard or heard[p].alive != alive)

        own = Proposal(False, target, alive, self._completed, self._settled, place.peer.port)
        self._tell(own, alive)
        while True:
            left = alive.intersection(*(said.alive for said in heard.values())) - self._dead
            if time.monotonic() > until_s:
                left -= missing(alive)
            if left != alive:
                alive, until_s = left, time.monotonic() + patience_s
                own = replace(own, alive=alive)
                self._tell(own, alive)
            elif not missing(alive):
                break
            elif not self._inbox:
                self._hear(until_s)
            for peer, said in self._inbox:
                if said.is_last_word or (said.epoch >= target and self.identity not in said.alive):
                    raise LeftOut(f"rank {peer} of the group and others go on without this rank", "timed_out", peer)
                if said.epoch > target:  # it has decided on this epoch, this rank has not: its decision counts
                    self._settle(said.settled)
                    self.epoch = target
                    raise PeerClosed(peer, "it is an epoch ahead")
                if said.epoch == target:
                    heard[peer] = said
            self._inbox.clear()
        self._check_quorum(alive)
        for peer in set(self.members) - alive - self._dead:
            self._tell(replace(own, is_last_word=True), [peer])
            self._lines[peer].close()
            self._dead.add(peer)
        heard[self.identity] = own
        self._settle(min(heard[peer].completed for peer in alive))
        self.epoch, self.members = target, tuple(sorted(alive))
        return {peer: heard[peer].port for peer in alive}

    def _settle(self, completed: int) -> None:
        self._completed = self._settled = completed

    def _check_quorum(self, alive: frozenset[int]) -> None:
        voters = set(self.members) - self._dead
        half = 2 * len(alive) == len(voters) and min(voters) in alive
        if 2 * len(alive) <= len(voters) and not half:
            raise LeftOut(f"only {len(alive)} of {len(voters)} ranks can be heard: the others may go on", "timed_out")

    def _tell(self, proposal: Proposal, peers: Sequence[int] | frozenset[int]) -> None:
        for peer in sorted(set(peers) - {self.identity} - self._dead):
            line = self._lines[peer]
            line.send(CONTROL, 0, memoryview(proposal.pack()))
            self._move(peer)

    def _move(self, peer: int) -> None:
        try:
            self._lines[peer].move()
        except CollectiveError:
            self._lines[peer].close()
            self._dead.add(peer)

    def _listen(self, peer: int) -> None:
        def said() -> None:
            self._inbox.append((peer, Proposal.unpack(self._rooms[peer])))
            self._listen(peer)

        self._lines[peer].receive(CONTROL, 0, memoryview(self._rooms[peer]), then=said)

    def _hear(self, until_s: float) -> None:
        """Wait until somebody says something or dies, or it is time."""
        poll = select.poll()
        lines = {self._lines[peer].socket.fileno(): peer for peer in self.members if self._can_speak(peer)}
        for descriptor in lines:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, until_s - time.monotonic()) * 1e3 + 1):
            self._move(lines[descriptor])

    def _can_speak(self, peer: int) -> bool:
        return peer != self.identity and peer not in self._dead

    def _connect(self, place: Place, ports: dict[int, int]) -> Group:
        """A new group of the members, on connections of this epoch."""
        if gone := self._dead & set(self.members):
            raise PeerClosed(min(gone))
        alarms = [self._lines[peer] for peer in self.members if peer != self.identity]
        deadline_s = time.monotonic() + self._timeout_s
        found: dict[int, Connection] = {}
        try:
            for peer in self.members:
                if peer < self.identity:
                    found[peer] = call(place, replace(self._peers[peer], port=ports[peer]), deadline_s, alarms)
            later = {peer for peer in self.members if peer > self.identity}
            found |= answer(place, later, deadline_s, alarms)
            return self._group(found, alarms)
        except CollectiveError:
            for connection in found.values():
                connection.close()
            raise

    def _group(self, found: dict[int, Connection], alarms: Sequence[Connection]) -> Group:
        peers = [replace(self._peers[peer], rank=rank) for rank, peer in enumerate(self.members)]
        for peer, connection in found.items():
            connection.peer = self.members.index(peer)
        meshed = {connection.peer: connection for connection in found.values()}
        return Group(
            self.rank, peers, meshed, Messages({}, self._timeout_s), self._timeout_s, self._costs, self._memory, alarms
        )
