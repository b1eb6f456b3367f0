"""Agreement of ranks on the survivors, as a state machine: messages go in, proposals and a decision come out.

It has no sockets and no clock, so a test can deliver messages and losses in any order (tests/train/comm/elastic).
Survivors (`survivors.py`) sends and receives its messages.

    propose     each rank sends the set of ranks it believes alive to every rank in that set
    shrink      it receives a smaller set, loses a rank, or finds one silent for `patience_s`: it proposes fewer ranks
    agreed      all ranks it believes alive have proposed the same set
    quorum      and they are enough to continue without the others

Source:  Chandra and Toueg 1996 for the limits of agreement; here the sets are flooded until they are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frog.train.comm.collectives.errors import Mismatch, PeerClosed
from frog.train.comm.elastic.agreement import LeftOut, Proposal

Next = Literal["tell", "wait", "decided"]


@dataclass(frozen=True)
class Decision:
    """The result on which all remaining ranks agree."""

    members: tuple[int, ...]
    completed: int
    """Collectives whose result all of them have."""
    ports: dict[int, int]
    """The port on which each member listens."""
    left_out: frozenset[int]
    """Ranks that were silent for too long and may still be alive."""


class Ahead(PeerClosed):
    """A peer has already decided on this epoch, and this rank has not: the peer's decision counts."""

    def __init__(self, peer: int, settled: int) -> None:
        super().__init__(peer, "it is an epoch ahead")
        self.settled = settled


class Consensus:
    """One rank's part in the agreement on one epoch."""

    def __init__(
        self,
        identity: int,
        members: Sequence[int],
        joining: Collection[int],
        dead: Collection[int],
        own: Proposal,
        *,
        patience_s: float,
        quorum_patience_s: float,
        now_s: float,
    ) -> None:
        """own: this rank's proposal; `alive` is filled in here.

        patience_s: how long others may be silent. quorum_patience_s: how long to wait for reports of losses afterwards.
        """
        self._identity, self._members, self._dead = identity, tuple(members), set(dead)
        self._everyone = frozenset(members) | frozenset(joining)
        self._patience_s, self._quorum_patience_s = patience_s, quorum_patience_s
        self.alive = self._everyone - self._dead
        self.own = replace(own, alive=self.alive)
        """The proposal that this rank sends."""
        self.until_s = now_s + patience_s
        """How long to wait for the others."""
        self.is_agreed = False
        """True once the sets are equal; from then on only losses count."""
        self._is_told = False
        self._heard: dict[int, Proposal] = {}
        self._called = {own.begun: (identity, own.call)} if own.call else {}

    def lose(self, peer: int) -> None:
        """Mark a peer as dead: its connection has ended."""
        self._dead.add(peer)

    def hear(self, peer: int, said: Proposal) -> None:
        """Process a peer's proposal.

        Raises:  LeftOut if the others continue without this rank; Ahead if the peer has already decided; Mismatch if
                 the ranks called different collectives.
        """
        target = self.own.epoch
        if said.is_last_word or (said.epoch >= target and self._identity not in said.alive):
            raise LeftOut(f"rank {peer} of the group and others continue without this rank", "timed_out", peer)
        if said.call:
            self._compare(self._called.setdefault(said.begun, (peer, said.call)), peer, said.call)
        if said.epoch > target:
            raise Ahead(peer, said.settled)
        if said.epoch == target:
            self._heard[peer] = said

    def step(self, now_s: float) -> Next:
        """Return the next action: send `own` to the `alive` ranks, wait for messages until `until_s`, or stop.

        Raises:  LeftOut if too few ranks remain to continue.
        """
        if self.is_agreed:
            return self._await_quorum(now_s)
        if not self._is_told:
            self._is_told = True
            return "tell"
        left = self.alive.intersection(*(said.alive for said in self._heard.values())) - self._dead
        if left == self.alive and now_s > self.until_s:  # otherwise the others have already excluded a rank
            left -= self._missing()
        if left != self.alive:
            self.alive, self.until_s = left, now_s + self._patience_s
            self.own = replace(self.own, alive=left)
            return "tell"
        if self._missing():
            return "wait"
        self.is_agreed, self.until_s = True, now_s + self._quorum_patience_s
        return self._await_quorum(now_s)

    def decision(self) -> Decision:
        """Return the agreement, once `step` has reported it."""
        heard = {**self._heard, self._identity: self.own}
        return Decision(
            tuple(sorted(self.alive)),
            min(heard[peer].completed for peer in self.alive),
            {peer: heard[peer].port for peer in self.alive},
            self._everyone - self.alive - self._dead,
        )

    def _missing(self) -> frozenset[int]:
        """Return the ranks believed alive that have not proposed the same set."""
        return frozenset(
            peer
            for peer in self.alive - {self._identity}
            if peer not in self._heard or self._heard[peer].alive != self.alive
        )

    def _await_quorum(self, now_s: float) -> Next:
        """Wait in case other ranks learn of a death before this rank does."""
        if self.is_quorum():
            return "decided"
        if now_s > self.until_s:
            raise LeftOut(f"only ranks {sorted(self.alive)} can be reached: the others may continue", "timed_out")
        return "wait"

    def is_quorum(self) -> bool:
        """True if the ranks believed alive outnumber the others not known to be dead, or tie and include the lowest."""
        voters = set(self._members) - self._dead
        left = voters & self.alive
        return 2 * len(left) > len(voters) or (2 * len(left) == len(voters) and min(voters) in left)

    def _compare(self, first: tuple[int, str], peer: int, call: str) -> None:
        """Raise Mismatch if two ranks call different collectives, even if one of them has not reached its call yet."""
        one, its_call = first
        if its_call != call:
            who, other = self._members.index(peer), self._members.index(one)
            whose = "this one" if one == self._identity else f"rank {other}"
            raise Mismatch(f"rank {who} of the group calls {call}; {whose} {its_call}", who)
