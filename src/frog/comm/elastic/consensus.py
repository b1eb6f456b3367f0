"""How ranks agree on who is left, as a state machine: what a rank hears goes in, what it says and decides comes out.

It has no sockets and no clock, so a test can deliver messages and losses in any order (tests/comm/elastic). Survivors
(`survivors.py`) carries its messages.

    propose     each rank tells all whom it thinks alive which ranks these are
    shrink      it hears of fewer, loses one, or one was silent for `patience_s`: it proposes what is left
    agreed      all whom it thinks alive have proposed just the same
    quorum      and they are enough to continue without the others

Source:  Chandra and Toueg 1996 for what can be agreed on; the sets here are flooded until they are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frog.comm.collectives.errors import Mismatch, PeerClosed
from frog.comm.elastic.agreement import LeftOut, Proposal

Next = Literal["tell", "wait", "decided"]


@dataclass(frozen=True)
class Decision:
    """What all ranks that are left have agreed on."""

    members: tuple[int, ...]
    completed: int
    """Collectives of which all of them have the result."""
    ports: dict[int, int]
    """Where each member can be called."""
    left_out: frozenset[int]
    """Ranks that were silent for too long, and may still be alive."""


class Ahead(PeerClosed):
    """A peer has decided on this epoch already, and this rank has not: the peer's decision counts."""

    def __init__(self, peer: int, settled: int) -> None:
        super().__init__(peer, "it is an epoch ahead")
        self.settled = settled


class Consensus:
    """One rank's part in agreeing on one epoch."""

    def __init__(
        self,
        identity: int,
        members: Sequence[int],
        newcomers: Collection[int],
        dead: Collection[int],
        own: Proposal,
        *,
        patience_s: float,
        quorum_patience_s: float,
        now_s: float,
    ) -> None:
        """own: this rank's proposal, of which `alive` is set here.

        patience_s: how long others may be silent. quorum_patience_s: how long to wait for news of losses, once agreed.
        """
        self._identity, self._members, self._dead = identity, tuple(members), set(dead)
        self._everyone = frozenset(members) | frozenset(newcomers)
        self._patience_s, self._quorum_patience_s = patience_s, quorum_patience_s
        self.alive = self._everyone - self._dead
        self.own = replace(own, alive=self.alive)
        """What this rank says."""
        self.until_s = now_s + patience_s
        """How long to wait for the others."""
        self.is_agreed = False
        """Whether the sets are equal; from then on only losses count."""
        self._is_told = False
        self._heard: dict[int, Proposal] = {}
        self._called = {own.begun: (identity, own.call)} if own.call else {}

    def lose(self, peer: int) -> None:
        """A peer's connection has ended: it is dead."""
        self._dead.add(peer)

    def hear(self, peer: int, said: Proposal) -> None:
        """Take in what a peer proposes.

        Raises:  LeftOut if the others continue without this rank; Ahead if the peer has decided already; Mismatch if
                 the ranks have called different collectives.
        """
        target = self.own.epoch
        if said.is_last_word or (said.epoch >= target and self._identity not in said.alive):
            raise LeftOut(f"rank {peer} of the group and others go on without this rank", "timed_out", peer)
        if said.call:
            self._compare(self._called.setdefault(said.begun, (peer, said.call)), peer, said.call)
        if said.epoch > target:
            raise Ahead(peer, said.settled)
        if said.epoch == target:
            self._heard[peer] = said

    def step(self, now_s: float) -> Next:
        """What to do now: tell `own` to those who are `alive`, wait until `until_s` for news, or nothing more.

        Raises:  LeftOut if too few are left to continue.
        """
        if self.is_agreed:
            return self._await_quorum(now_s)
        if not self._is_told:
            self._is_told = True
            return "tell"
        left = self.alive.intersection(*(said.alive for said in self._heard.values())) - self._dead
        if left == self.alive and now_s > self.until_s:  # else others have left somebody out already
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
        """What was agreed on, once `step` has said so."""
        heard = {**self._heard, self._identity: self.own}
        return Decision(
            tuple(sorted(self.alive)),
            min(heard[peer].completed for peer in self.alive),
            {peer: heard[peer].port for peer in self.alive},
            self._everyone - self.alive - self._dead,
        )

    def _missing(self) -> frozenset[int]:
        """Ranks thought alive that have not proposed the same set."""
        return frozenset(
            peer
            for peer in self.alive - {self._identity}
            if peer not in self._heard or self._heard[peer].alive != self.alive
        )

    def _await_quorum(self, now_s: float) -> Next:
        """Others may know of a death before this rank does."""
        if self.is_quorum():
            return "decided"
        if now_s > self.until_s:
            raise LeftOut(f"only ranks {sorted(self.alive)} can be heard: the others may go on", "timed_out")
        return "wait"

    def is_quorum(self) -> bool:
        """Whether those thought alive outnumber the other members not known to be dead, or are half with the lowest."""
        voters = set(self._members) - self._dead
        left = voters & self.alive
        return 2 * len(left) > len(voters) or (2 * len(left) == len(voters) and min(voters) in left)

    def _compare(self, first: tuple[int, str], peer: int, call: str) -> None:
        """Raise Mismatch if two ranks call different things where all do the same: also one that is not so far yet."""
        one, its_call = first
        if its_call != call:
            who, other = self._members.index(peer), self._members.index(one)
            whose = "this one" if one == self._identity else f"rank {other}"
            raise Mismatch(f"rank {who} of the group calls {call}; {whose} {its_call}", who)
