"""A group that continues when ranks are lost: the survivors of a collective agree on its outcome and on the members.

The connections of the collectives are rebuilt for each epoch (the time between two changes). In addition, each pair of
ranks has a control connection, which is silent while all is well. When a rank dies, the operating system closes its
ends, which wakes every other rank; a rank that gives up for another reason says so there. Either event ends the
current collective on every rank.

Then each rank proposes which ranks it believes alive, how many collective results it has, and where it can be reached
next. A rank decides when all ranks it believes alive have proposed the same set. All of them then know the same:

    completed    the collectives whose result all of them have. If the current one is among them, it succeeds on every
    survivor. If not, every survivor gets its buffers back unchanged, and WorldChanged.

    called       the collective that each of them called. A difference would repeat: all get Mismatch, and the run ends.

No rank returns from a collective before all have its result: a collective ends with a barrier. So the outcome never
revokes a result that a rank has already returned.

A rank that is silent for `patience_s` while the others agree is excluded, and receives a message to that effect if it
ever wakes. The survivors continue only if they are more than half of the ranks not known to be dead, or half including
the lowest rank: two halves that cannot reach each other do not both continue.

A joining rank (`join_endpoint.py`) first gets a control connection to each member. From then on it takes part in the
next agreement, and becomes a member if all members have such a connection.

Comm:    one more barrier per collective; after a loss, each rank sends a message to every other rank and reconnects.
The rules of the agreement are in `consensus.py`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import numpy as np

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.core.runs.observer import operation
from frog.train.comm.collectives.arithmetic import Buffer
from frog.train.comm.collectives.connection import Connection
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.errors import CollectiveError, Mismatch, PeerClosed
from frog.train.comm.collectives.frames import CONTROL
from frog.train.comm.collectives.group import Group
from frog.train.comm.collectives.messages import Messages
from frog.train.comm.collectives.rendezvous import Peer, Place, answer, call
from frog.train.comm.elastic.agreement import PROPOSAL_BYTES, LeftOut, Proposal, WorldChanged
from frog.train.comm.elastic.consensus import Ahead, Consensus
from frog.train.comm.elastic.join_endpoint import NOTE_BYTES, JoinRequest, Welcome, read_note


class Survivors:
    """Collectives of a group that may lose ranks. A rank keeps its `identity`; `rank` is its index in `members`, the
    identities of the current members."""

    def __init__(
        self,
        identity: int,
        peers: Mapping[int, Peer],
        lines: Mapping[int, Connection],
        members: Sequence[int],
        secret: bytes,
        *,
        timeout_s: float,
        patience_s: float,
        costs: Costs,
        memory: bool,
        epoch: int = 0,
        completed: int = 0,
    ) -> None:
        """peers: all past and present members, and this rank. lines: connections to the members. See `entrance.py`."""
        self.identity, self._peers, self._secret = identity, dict(peers), secret
        self._timeout_s, self._patience_s, self._costs, self._memory = timeout_s, patience_s, costs, memory
        self._lines: dict[int, Connection] = {}
        self._buffers: dict[int, bytearray] = {}
        self._inbox: list[tuple[int, Proposal]] = []
        for peer, line in lines.items():
            self._add_line(peer, line)
        self.members = tuple(members)
        self._joining = {identity} - set(members)
        """Joining ranks with a connection to each member, as far as this rank knows, that are not members yet."""
        self.epoch, self._completed, self._settled = epoch, completed, completed
        self._dead: set[int] = set()
        self.left_out: set[int] = set()
        """Ranks that were silent for too long, as seen by this rank: they may still be alive."""
        self._news: WorldChanged | None = None
        self._begun, self._call = (epoch, 0), ""
        """The last collective that began: its epoch and number, and its description."""
        try:
            self.group = self._regroup(timeout_s)
        except BaseException:
            self._hang_up()
            raise

    @property
    def rank(self) -> int:
        return self.members.index(self.identity)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def address(self) -> Peer:
        """The address of this rank."""
        return self._peers[self.identity]

    @property
    def is_full(self) -> bool:
        """True if no identity is left for a joining rank."""
        return max(self._peers) + 1 >= MOST_ELASTIC_RANKS

    @property
    def messages(self) -> Messages:
        return self.group.messages

    @operation("all_reduce")
    def all_reduce(self, x: Buffer, op: str = "sum") -> None:
        """Sum `x` over all ranks in place. Raises WorldChanged, like all collectives here."""
        self._attempt(f"all_reduce of {x.nbytes} bytes", lambda group: group.all_reduce(x, op), [x])

    @operation("all_gather")
    def all_gather(self, parts: Sequence[Buffer], x: Buffer) -> None:
        """Fill `parts` with each rank's `x`, in rank order."""
        self._attempt(f"all_gather of {x.nbytes} bytes", lambda group: group.all_gather(parts, x), parts)

    @operation("reduce_scatter")
    def reduce_scatter(self, out: Buffer, parts: Sequence[Buffer], op: str = "sum") -> None:
        """Set `out` to the sum of all ranks' `parts[rank]`."""
        call = f"reduce_scatter of {out.nbytes} bytes"
        self._attempt(call, lambda group: group.reduce_scatter(out, parts, op), [out])

    @operation("broadcast")
    def broadcast(self, x: Buffer, root: int) -> None:
        """Copy `root`'s `x` to all ranks."""
        self._attempt(f"broadcast of {x.nbytes} bytes from {root}", lambda group: group.broadcast(x, root), [x])

    @operation("reduce")
    def reduce(self, x: Buffer, root: int, op: str = "sum") -> None:
        """Set `root`'s `x` to the sum over all ranks."""
        self._attempt(f"reduce of {x.nbytes} bytes to {root}", lambda group: group.reduce(x, root, op), [x])

    @operation("gather")
    def gather(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """Collect each rank's `x` in `root`'s `parts`."""
        call = f"gather of {x.nbytes} bytes to {root}"
        self._attempt(call, lambda group: group.gather(x, parts, root), parts or [])

    @operation("scatter")
    def scatter(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """Set `x` to this rank's element of `root`'s `parts`."""
        call = f"scatter of {x.nbytes} bytes from {root}"
        self._attempt(call, lambda group: group.scatter(x, parts, root), [x])

    @operation("all_to_all")
    def all_to_all(self, arrive: Sequence[Buffer], leave: Sequence[Buffer], even: bool = False) -> None:
        """Set `arrive[i]` to rank i's `leave[rank]`."""
        call = f"all_to_all of {leave[0].nbytes} bytes to each" if even else "all_to_all"
        self._attempt(call, lambda group: group.all_to_all(arrive, leave, even), arrive)

    @operation("barrier")
    def barrier(self) -> None:
        """Return once every rank has called this."""
        self._attempt("barrier", lambda group: group.barrier(), [])

    def close(self) -> None:
        """Leave the group. The other ranks see a loss, unless they leave too."""
        self.group.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.close()

    # ---- joining ranks -----------------------------------------------------------------------------------------------

    def admit(self, request: JoinRequest | None) -> NoReturn:
        """Admit a process. A collective call, in which the first member passes the request; it always ends the epoch.

        Raises:  WorldChanged, which says whether the process was admitted.
        """
        before, note = self.members, np.zeros(NOTE_BYTES, np.uint8)
        if request is not None:
            note[:] = np.frombuffer(request.note, np.uint8)
        try:
            self.broadcast(note, 0)
        except BaseException:
            if request is not None:
                request.decline()
            raise
        peer = read_note(note.tobytes(), max(self._peers) + 1)
        self._peers[peer.rank] = peer
        if request is not None:
            request.admit(
                Welcome(peer.rank, self.epoch, self._completed, self.members, self._peers, self._costs.to_text())
            )
        self._greet(peer)
        epoch = self.epoch
        with suppress(WorldChanged):
            self.barrier()  # every rank has a connection to it, or knows that it failed
        if epoch == self.epoch:
            self.group.close()
            self.group = self._regroup(self._timeout_s)
        self._news = None
        raise WorldChanged(before, self.members)

    def _greet(self, peer: Peer) -> None:
        """Connect to a joining rank. If it cannot be reached, it counts as dead."""
        place = self._place("survivors")
        try:
            self._add_line(peer.rank, call(place, peer, time.monotonic() + self._patience_s))
            self._joining.add(peer.rank)
        except CollectiveError:
            self._dead.add(peer.rank)
        finally:
            place.close()

    def _add_line(self, peer: int, line: Connection) -> None:
        self._lines[peer], self._buffers[peer] = line, bytearray(PROPOSAL_BYTES)
        self._listen(peer)

    # ---- a collective ------------------------------------------------------------------------------------------------

    def _attempt(self, call: str, job: Callable[[Group], None], buffers: Sequence[Buffer]) -> None:
        """Run the collective that `call` describes: it completes on all survivors, or is undone on all of them."""
        if self._news is not None:
            news, self._news = self._news, None
            raise news
        before, number = [x.copy() for x in buffers], self._completed + 1
        self._begun, self._call = (self.epoch, number), call
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
        changed = WorldChanged(was, self.members)
        if self._completed >= number:
            self._news = changed
            return
        for x, old in zip(buffers, before, strict=True):
            x[:] = old
        raise changed

    @operation("agreement")
    def _regroup(self, patience_s: float) -> Group:
        """Agree on the survivors and connect to each of them; repeat if one is lost meanwhile."""
        while True:
            self._receive(0)  # an excluded rank may have sent something earlier
            place = self._place(f"epoch {self.epoch + 1}")
            try:
                ports = self._agree(place, patience_s)
                return self._connect(place, ports)
            except (CollectiveError, OSError) as error:
                if isinstance(error, LeftOut | Mismatch):
                    raise
            finally:
                place.close()

    def _place(self, name: str) -> Place:
        return Place(self.identity, MOST_ELASTIC_RANKS, name, self._secret, self._peers[self.identity].host, "")

    @property
    def _all(self) -> frozenset[int]:
        """Members, and joining ranks."""
        return frozenset(self.members) | self._joining

    def _agree(self, place: Place, patience_s: float) -> dict[int, int]:
        """Return each survivor's port once all have proposed the same set. Sets the members and the completed count."""
        counts = (self._completed, self._settled)
        own = Proposal(False, self.epoch + 1, frozenset(), *counts, place.peer.port, self._begun, self._call)
        consensus = Consensus(
            self.identity, self.members, self._joining, self._dead, own,
            patience_s=patience_s, quorum_patience_s=self._patience_s, now_s=time.monotonic(),
        )  # fmt: skip
        while (next_ := consensus.step(time.monotonic())) != "decided":
            if next_ == "tell":
                self._tell(consensus.own, consensus.alive)
            else:
                self._receive(consensus.until_s)
            self._pass_on(consensus)
        decision = consensus.decision()
        for peer in decision.left_out:
            self._tell(replace(consensus.own, is_last_word=True), [peer])
            self._lines[peer].close()
            self._dead.add(peer)
            self.left_out.add(peer)
        self._settle(decision.completed)
        self.epoch, self.members, self._joining = own.epoch, decision.members, set()
        return decision.ports

    def _pass_on(self, consensus: Consensus) -> None:
        """Pass deaths and messages to the agreement. Once all agree, only deaths count in this epoch."""
        for peer in self._dead:
            consensus.lose(peer)
        if consensus.is_agreed:
            return
        try:
            for peer, said in self._inbox:
                consensus.hear(peer, said)
        except Ahead as ahead:
            self._settle(ahead.settled)
            self.epoch += 1
            raise
        self._inbox.clear()

    def _settle(self, completed: int) -> None:
        self._completed = self._settled = completed

    def _tell(self, proposal: Proposal, peers: Iterable[int]) -> None:
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
        def receive_proposal() -> None:
            self._inbox.append((peer, Proposal.unpack(self._buffers[peer])))
            self._listen(peer)

        self._lines[peer].receive(CONTROL, 0, memoryview(self._buffers[peer]), then=receive_proposal)

    def _receive(self, until_s: float) -> None:
        """Wait until a message arrives, a rank dies, or the time is up."""
        poll = select.poll()
        lines = {self._lines[peer].socket.fileno(): peer for peer in self._all if self._can_speak(peer)}
        for descriptor in lines:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, until_s - time.monotonic()) * 1e3 + 1):
            self._move(lines[descriptor])

    def _can_speak(self, peer: int) -> bool:
        return peer != self.identity and peer not in self._dead

    def _connect(self, place: Place, ports: dict[int, int]) -> Group:
        """Build a new group of the members, on connections of this epoch."""
        if gone := self._dead & set(self.members):
            raise PeerClosed(min(gone))
        alarms = [self._lines[peer] for peer in self.members if peer != self.identity]
        deadline_s = time.monotonic() + self._timeout_s
        connections: dict[int, Connection] = {}
        try:
            for peer in self.members:
                if peer < self.identity:
                    connections[peer] = call(place, replace(self._peers[peer], port=ports[peer]), deadline_s, alarms)
            later = {peer for peer in self.members if peer > self.identity}
            connections |= answer(place, later, deadline_s, alarms)
            return self._group(connections, alarms)
        except BaseException:
            for connection in connections.values():
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
