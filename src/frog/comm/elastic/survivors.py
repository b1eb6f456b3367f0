"""A group that goes on when ranks are lost: the survivors of a collective agree on one verdict, and on who they are.

Beside the connections of the collectives, which are made anew for each epoch (a time between two changes), there is
one connection between each two ranks, a line, on which nothing is said as long as all is well. When a rank dies, the
system closes its ends, and everybody is woken; whoever else gives up speaks there. Either ends the collective under
way on every rank.

Then each rank proposes: who it thinks is left, how many collectives it has the result of, and where it can be called
next. A rank decides when all whom it thinks left have proposed just the same set. What it then knows is what each of
them knows:

    completed    the collectives of which all of them have the result. The one under way, if it is among them, ends
    well on every survivor. If it is not, every survivor gets its buffers back as they were, and WorldChanged.

    called       what each of them called. Where that differs it would again: all get Mismatch, and nobody goes on.

No rank returns from a collective before all have its result: it ends with a barrier. So a verdict never takes back what
somebody has returned with.

A rank that is silent for `patience_s` while the others agree is left out, and told so should it ever wake. Those who
are left go on only if they are more than half of those who are not known to be dead, or half with the lowest rank
among them: two halves that cannot hear each other do not both go on.

Who comes in (`door.py`) first gets a line to each member. From then on it takes part in the next agreement, and is in
if all members have such a line.

Comm:    a barrier more per collective; a loss costs each rank a message to each other, and new connections.
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

from frog.comm.collectives.arithmetic import Buffer
from frog.comm.collectives.connection import Connection
from frog.comm.collectives.cost import Costs
from frog.comm.collectives.errors import CollectiveError, Mismatch, PeerClosed
from frog.comm.collectives.frames import CONTROL
from frog.comm.collectives.group import Group
from frog.comm.collectives.messages import Messages
from frog.comm.collectives.rendezvous import Peer, Place, answer, call
from frog.comm.elastic.agreement import PROPOSAL_BYTES, LeftOut, Proposal, WorldChanged
from frog.comm.elastic.consensus import Ahead, Consensus
from frog.comm.elastic.door import NOTE_BYTES, Applicant, Welcome, read_note
from frog.config.run import MOST_ELASTIC_RANKS
from frog.runs.observer import operation


class Survivors:
    """The collectives of a group whose ranks may be lost. A rank keeps its `identity`; `rank` is its place among
    `members`, the identities of those who are there."""

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
        """peers: all who ever were members, and this rank. lines: to each member. See `entrance.py`."""
        self.identity, self._peers, self._secret = identity, dict(peers), secret
        self._timeout_s, self._patience_s, self._costs, self._memory = timeout_s, patience_s, costs, memory
        self._lines: dict[int, Connection] = {}
        self._rooms: dict[int, bytearray] = {}
        self._inbox: list[tuple[int, Proposal]] = []
        for peer, line in lines.items():
            self._add_line(peer, line)
        self.members = tuple(members)
        self._newcomers = {identity} - set(members)
        """Who has a line to each member that this rank knows of, and is no member yet."""
        self.epoch, self._completed, self._settled = epoch, completed, completed
        self._dead: set[int] = set()
        self.left_out: set[int] = set()
        """Who was silent for too long, as far as this rank has found it so: it may still be there."""
        self._news: WorldChanged | None = None
        self._begun, self._call = (epoch, 0), ""
        """The last collective that was begun: its epoch and number, and what it is."""
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
        """Where this rank is."""
        return self._peers[self.identity]

    @property
    def is_full(self) -> bool:
        """Whether no number is left for one who comes in."""
        return max(self._peers) + 1 >= MOST_ELASTIC_RANKS

    @property
    def messages(self) -> Messages:
        return self.group.messages

    @operation("all_reduce")
    def all_reduce(self, x: Buffer, op: str = "sum") -> None:
        """`x` of all ranks, summed in place. Raises WorldChanged, as all of these do."""
        self._attempt(f"all_reduce of {x.nbytes} bytes", lambda group: group.all_reduce(x, op), [x])

    @operation("all_gather")
    def all_gather(self, parts: Sequence[Buffer], x: Buffer) -> None:
        """Fill `parts` with everybody's `x`, in order of ranks."""
        self._attempt(f"all_gather of {x.nbytes} bytes", lambda group: group.all_gather(parts, x), parts)

    @operation("reduce_scatter")
    def reduce_scatter(self, out: Buffer, parts: Sequence[Buffer], op: str = "sum") -> None:
        """`out` becomes the sum of everybody's `parts[rank]`."""
        call = f"reduce_scatter of {out.nbytes} bytes"
        self._attempt(call, lambda group: group.reduce_scatter(out, parts, op), [out])

    @operation("broadcast")
    def broadcast(self, x: Buffer, root: int) -> None:
        """Give everybody `root`'s `x`."""
        self._attempt(f"broadcast of {x.nbytes} bytes from {root}", lambda group: group.broadcast(x, root), [x])

    @operation("reduce")
    def reduce(self, x: Buffer, root: int, op: str = "sum") -> None:
        """`root`'s `x` becomes the sum of everybody's."""
        self._attempt(f"reduce of {x.nbytes} bytes to {root}", lambda group: group.reduce(x, root, op), [x])

    @operation("gather")
    def gather(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """`root` gets everybody's `x` into its `parts`."""
        call = f"gather of {x.nbytes} bytes to {root}"
        self._attempt(call, lambda group: group.gather(x, parts, root), parts or [])

    @operation("scatter")
    def scatter(self, x: Buffer, parts: Sequence[Buffer] | None, root: int) -> None:
        """Everybody gets its own of `root`'s `parts` into `x`."""
        call = f"scatter of {x.nbytes} bytes from {root}"
        self._attempt(call, lambda group: group.scatter(x, parts, root), [x])

    @operation("all_to_all")
    def all_to_all(self, arrive: Sequence[Buffer], leave: Sequence[Buffer], even: bool = False) -> None:
        """`arrive[i]` becomes rank i's `leave[rank]`."""
        call = f"all_to_all of {leave[0].nbytes} bytes to each" if even else "all_to_all"
        self._attempt(call, lambda group: group.all_to_all(arrive, leave, even), arrive)

    @operation("barrier")
    def barrier(self) -> None:
        """Return when every rank is here."""
        self._attempt("barrier", lambda group: group.barrier(), [])

    def close(self) -> None:
        """Leave. To the others this is a loss, unless they leave too."""
        self.group.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.close()

    # ---- one who comes in --------------------------------------------------------------------------------------------

    def admit(self, applicant: Applicant | None) -> NoReturn:
        """Let one in. A collective call, in which the first member brings the applicant; it always ends the epoch.

        Raises:  WorldChanged, which says whether it was let in.
        """
        before, note = self.members, np.zeros(NOTE_BYTES, np.uint8)
        if applicant is not None:
            note[:] = np.frombuffer(applicant.note, np.uint8)
        try:
            self.broadcast(note, 0)
        except BaseException:
            if applicant is not None:
                applicant.send_away()
            raise
        peer = read_note(note.tobytes(), max(self._peers) + 1)
        self._peers[peer.rank] = peer
        if applicant is not None:
            applicant.welcome(
                Welcome(peer.rank, self.epoch, self._completed, self.members, self._peers, self._costs.to_text())
            )
        self._greet(peer)
        epoch = self.epoch
        with suppress(WorldChanged):
            self.barrier()  # all have a line to it, or know that they have none
        if epoch == self.epoch:
            self.group.close()
            self.group = self._regroup(self._timeout_s)
        self._news = None
        raise WorldChanged(before, self.members)

    def _greet(self, peer: Peer) -> None:
        """Make a line to one who comes in. Who cannot be reached is dead."""
        place = self._place("survivors")
        try:
            self._add_line(peer.rank, call(place, peer, time.monotonic() + self._patience_s))
            self._newcomers.add(peer.rank)
        except CollectiveError:
            self._dead.add(peer.rank)
        finally:
            place.close()

    def _add_line(self, peer: int, line: Connection) -> None:
        self._lines[peer], self._rooms[peer] = line, bytearray(PROPOSAL_BYTES)
        self._listen(peer)

    # ---- a collective ------------------------------------------------------------------------------------------------

    def _attempt(self, call: str, job: Callable[[Group], None], buffers: Sequence[Buffer]) -> None:
        """Carry out a collective, which `call` names: it is completed on all survivors, or undone on all of them."""
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
        """Agree on who is left, and connect to each of them; again if one is lost meanwhile."""
        while True:
            self._hear(0)  # who has left may have said something before
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
        """Members, and who is about to be one."""
        return frozenset(self.members) | self._newcomers

    def _agree(self, place: Place, patience_s: float) -> dict[int, int]:
        """Return each survivor's port, once all have proposed the same. Sets what was completed, and members."""
        counts = (self._completed, self._settled)
        own = Proposal(False, self.epoch + 1, frozenset(), *counts, place.peer.port, self._begun, self._call)
        consensus = Consensus(
            self.identity, self.members, self._newcomers, self._dead, own,
            patience_s=patience_s, quorum_patience_s=self._patience_s, now_s=time.monotonic(),
        )  # fmt: skip
        while (next_ := consensus.step(time.monotonic())) != "decided":
            if next_ == "tell":
                self._tell(consensus.own, consensus.alive)
            else:
                self._hear(consensus.until_s)
            self._pass_on(consensus)
        decision = consensus.decision()
        for peer in decision.left_out:
            self._tell(replace(consensus.own, is_last_word=True), [peer])
            self._lines[peer].close()
            self._dead.add(peer)
            self.left_out.add(peer)
        self._settle(decision.completed)
        self.epoch, self.members, self._newcomers = own.epoch, decision.members, set()
        return decision.ports

    def _pass_on(self, consensus: Consensus) -> None:
        """Let the agreement know who has died and what was said. Once all agree, only deaths count in this epoch."""
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
        def said() -> None:
            self._inbox.append((peer, Proposal.unpack(self._rooms[peer])))
            self._listen(peer)

        self._lines[peer].receive(CONTROL, 0, memoryview(self._rooms[peer]), then=said)

    def _hear(self, until_s: float) -> None:
        """Wait until somebody says something or dies, or it is time."""
        poll = select.poll()
        lines = {self._lines[peer].socket.fileno(): peer for peer in self._all if self._can_speak(peer)}
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
        except BaseException:
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
