"""The agreement of survivors, from messages alone: in any order, with losses at any time, and with silent ranks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frog.train.comm.collectives.errors import CollectiveError, Mismatch
from frog.train.comm.elastic.agreement import LeftOut, Proposal
from frog.train.comm.elastic.consensus import Ahead, Consensus

PATIENCE_S = 1.0
SETTLED = 5

Message = Proposal | None
"""The content of a line; None: its end was closed."""


@dataclass
class Rank:
    """One rank as `Survivors` runs it: it agrees, decides, and agrees again when a member is lost."""

    identity: int
    members: tuple[int, ...]
    completed: int
    settled: int = SETTLED
    epoch: int = 0
    dead: set[int] = field(default_factory=set)
    inbox: list[tuple[int, Proposal]] = field(default_factory=list)
    sends: deque[tuple[int, Message]] = field(default_factory=deque)
    consensus: Consensus | None = None
    status: str = "training"
    """Or agreeing, left out, crashed."""


class World:
    """Ranks and the lines between them. The driver chooses each next event."""

    def __init__(self, completed: list[int]) -> None:
        members = tuple(range(len(completed)))
        self.ranks = [Rank(identity, members, count) for identity, count in enumerate(completed)]
        self.lines: dict[tuple[int, int], deque[Message]] = {
            (a, b): deque() for a in members for b in members if a != b
        }
        self.silent: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        """Lines that currently deliver nothing."""
        self.now_s = 0.0

    def actions(self) -> list[tuple[str, int, int]]:
        """Return the possible next events: a rank sends its next message, or a line delivers one."""
        sends = [("send", rank.identity, 0) for rank in self.ranks if rank.sends and rank.identity not in self.silent]
        arrive = [("deliver", a, b) for (a, b), line in self.lines.items() if line and self.delivers(a, b)]
        return sends + arrive

    def delivers(self, a: int, b: int) -> bool:
        """True if b receives messages of a."""
        reader = self.ranks[b]
        return (a, b) not in self.cut and b not in self.silent and not reader.sends and reader.status != "crashed"

    def act(self, action: tuple[str, int, int]) -> None:
        kind, a, b = action
        if kind == "send":
            peer, message = self.ranks[a].sends.popleft()
            self.lines[a, peer].append(message)
            self.run(self.ranks[a])
            return
        message, rank = self.lines[a, b].popleft(), self.ranks[b]
        if message is None:
            rank.dead.add(a)
        else:
            rank.inbox.append((a, message))
        if rank.status == "training" and (a in rank.members if message is None else message.epoch > rank.epoch):
            self.begin(rank)
        self.run(rank)

    def crash(self, identity: int, lost: int) -> None:
        """End a rank; on each line, the last `lost` messages in transit from it are lost."""
        rank = self.ranks[identity]
        rank.status, rank.consensus = "crashed", None
        rank.sends.clear()
        for (a, _), line in self.lines.items():
            if a == identity:
                for _ in range(min(lost, len(line))):
                    line.pop()
                line.append(None)

    def begin(self, rank: Rank) -> None:
        """Start the agreement on the next epoch."""
        rank.status = "agreeing"
        own = Proposal(
            False, rank.epoch + 1, frozenset(), rank.completed, rank.settled, 1000 + rank.identity, (0, 6), "barrier"
        )
        rank.consensus = Consensus(
            rank.identity, rank.members, (), rank.dead, own,
            patience_s=PATIENCE_S, quorum_patience_s=PATIENCE_S, now_s=self.now_s,
        )  # fmt: skip

    def run(self, rank: Rank) -> None:
        """Run a rank until it waits, or has messages to send."""
        while rank.consensus is not None and not rank.sends:
            try:
                self._pass_on(rank, rank.consensus)
                next_ = rank.consensus.step(self.now_s)
            except Ahead as ahead:
                rank.completed = rank.settled = ahead.settled
                rank.epoch += 1
                self.begin(rank)
                continue
            except LeftOut:
                self._leave(rank)
                return
            if next_ == "wait":
                return
            if next_ == "tell":
                self._say(rank, rank.consensus.own, rank.consensus.alive)
            else:
                self._decide(rank, rank.consensus)

    def _pass_on(self, rank: Rank, consensus: Consensus) -> None:
        for peer in rank.dead:
            consensus.lose(peer)
        if not consensus.is_agreed:
            for peer, said in rank.inbox:
                consensus.hear(peer, said)
            rank.inbox.clear()

    def _say(self, rank: Rank, proposal: Proposal, peers: frozenset[int]) -> None:
        rank.sends.extend((peer, proposal) for peer in sorted(peers - {rank.identity} - rank.dead))

    def _decide(self, rank: Rank, consensus: Consensus) -> None:
        decision = consensus.decision()
        for peer in decision.left_out:
            rank.sends.extend([(peer, replace(consensus.own, is_last_word=True)), (peer, None)])
            rank.dead.add(peer)
        rank.completed = rank.settled = decision.completed
        rank.epoch, rank.members = consensus.own.epoch, decision.members
        rank.status, rank.consensus = "training", None
        if rank.dead & set(rank.members) or any(said.epoch > rank.epoch for _, said in rank.inbox):
            self.begin(rank)

    def _leave(self, rank: Rank) -> None:
        rank.status, rank.consensus = "left out", None
        rank.sends.extend((peer, None) for peer in range(len(self.ranks)) if peer != rank.identity)

    def wait(self) -> bool:
        """Let time pass for the waiting ranks if no message is in transit. Return True if any rank waits."""
        waiting = [rank for rank in self.ranks if rank.consensus is not None and rank.identity not in self.silent]
        self.now_s += 2 * PATIENCE_S
        for rank in waiting:
            self.run(rank)
        return bool(waiting)


def drive(world: World, data: st.DataObject, crashes: list[int], most_steps: int = 5000) -> None:
    """Let hypothesis choose the order of events, including these crashes, until no event is left."""
    for _ in range(most_steps):
        actions = world.actions()
        if crashes and (not actions or data.draw(st.integers(0, 9)) == 0):
            world.crash(crashes.pop(), lost=data.draw(st.integers(0, 2)))
        elif actions:
            world.act(data.draw(st.sampled_from(actions)))
        elif not world.wait():
            return
    raise AssertionError("the ranks do not finish")


def alive(world: World) -> list[Rank]:
    return [rank for rank in world.ranks if rank.status == "training" and rank.identity not in world.silent]


def check_one_world(world: World) -> None:
    """Check that all continuing ranks share one world and outcome. A rank with another decision could not connect."""
    continuing = [rank for rank in alive(world) if rank.epoch > 0]
    assert len({(rank.epoch, rank.members, rank.completed) for rank in continuing}) <= 1
    assert all(rank.identity in rank.members for rank in continuing)


sizes = st.integers(2, 5)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=sizes)
def test_all_survivors_of_crashes_continue_together(data: st.DataObject, size: int) -> None:
    completed = data.draw(st.lists(st.sampled_from([5, 6]), min_size=size, max_size=size))
    crashes = data.draw(st.lists(st.sampled_from(range(size)), unique=True, min_size=1, max_size=size - 1))
    world = World(completed)
    drive(world, data, list(crashes))
    survivors = sorted(set(range(size)) - set(crashes))
    check_one_world(world)
    assert [rank.identity for rank in alive(world)] == survivors
    assert {rank.members for rank in alive(world)} == {tuple(survivors)}
    assert min(completed) <= alive(world)[0].completed <= min(completed[rank] for rank in survivors)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=sizes)
def test_with_silent_ranks_at_most_one_world_continues(data: st.DataObject, size: int) -> None:
    """Some ranks are stopped while the others agree, and wake when these have decided or given up."""
    completed = data.draw(st.lists(st.sampled_from([5, 6]), min_size=size, max_size=size))
    silent = data.draw(st.lists(st.sampled_from(range(size)), unique=True, min_size=1, max_size=size - 1))
    awake = sorted(set(range(size)) - set(silent))
    crashes = data.draw(st.lists(st.sampled_from(range(size)), unique=True, max_size=1))
    world = World(completed)
    world.silent = set(silent)
    for rank in awake:  # a collective timed out
        world.begin(world.ranks[rank])
        world.run(world.ranks[rank])
    drive(world, data, list(crashes))
    check_one_world(world)
    world.silent = set()
    for rank in silent:
        if world.ranks[rank].status == "training":
            world.begin(world.ranks[rank])
            world.run(world.ranks[rank])
    drive(world, data, [])
    check_one_world(world)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=sizes)
def test_at_most_one_of_two_isolated_halves_continues(data: st.DataObject, size: int) -> None:
    half = set(data.draw(st.lists(st.sampled_from(range(size)), unique=True, min_size=1, max_size=size - 1)))
    world = World([5] * size)
    world.cut = {(a, b) for a, b in world.lines if (a in half) != (b in half)}
    for rank in world.ranks:
        world.begin(rank)
        world.run(rank)
    drive(world, data, [])
    check_one_world(world)
    larger = max(half, set(range(size)) - half, key=lambda ranks: (len(ranks), -min(ranks)))
    assert {rank.identity for rank in alive(world)} == larger
    world.cut = set()
    drive(world, data, [])
    check_one_world(world)


def test_majority_excludes_a_silent_rank_and_notifies_it() -> None:
    world = World([5, 5, 5])
    world.silent = {2}
    for rank in world.ranks[:2]:
        world.begin(rank)
        world.run(rank)
    while world.actions() or world.wait():
        for action in world.actions()[:1]:
            world.act(action)
    assert [rank.members for rank in world.ranks[:2]] == [(0, 1), (0, 1)]
    world.silent = set()
    world.begin(world.ranks[2])
    world.run(world.ranks[2])
    while world.actions():
        world.act(world.actions()[0])
    assert world.ranks[2].status == "left out"


def consensus(identity: int = 0, size: int = 2, call: str = "barrier") -> Consensus:
    own = Proposal(False, 1, frozenset(), 5, 5, 1000, (0, 6), call)
    return Consensus(identity, range(size), (), (), own, patience_s=1, quorum_patience_s=1, now_s=0)


def said(**changes: Any) -> Proposal:
    return replace(Proposal(False, 1, frozenset({0, 1}), 5, 5, 1001, (0, 6), "barrier"), **changes)


def test_ranks_that_called_different_collectives_do_not_continue() -> None:
    with pytest.raises(Mismatch, match="rank 1 of the group calls all_reduce of 8 bytes; this one barrier"):
        consensus().hear(1, said(call="all_reduce of 8 bytes"))


@pytest.mark.parametrize("changes", [{"is_last_word": True}, {"alive": frozenset({1})}])
def test_rank_notified_of_its_exclusion_ends(changes: dict[str, Any]) -> None:
    with pytest.raises(LeftOut):
        consensus().hear(1, said(**changes))


def test_decision_of_a_peer_counts_for_this_rank_too() -> None:
    with pytest.raises(Ahead) as ahead:
        consensus().hear(1, said(epoch=2, settled=6))
    assert ahead.value.settled == 6
    assert isinstance(ahead.value, CollectiveError)


def test_half_without_the_lowest_rank_does_not_continue() -> None:
    half = consensus(identity=1)
    assert half.step(0) == "tell"
    assert half.step(0) == "wait"
    assert half.step(1.5) == "tell", "the silent rank 0 is left out of the proposal"
    assert half.step(1.5) == "wait", "but one of two, without the lowest, is not a quorum"
    with pytest.raises(LeftOut, match=r"only ranks \[1\] can be reached"):
        half.step(4)
    lower = consensus(identity=0)
    assert [lower.step(0), lower.step(0), lower.step(1.5), lower.step(1.5)] == ["tell", "wait", "tell", "decided"]
    assert lower.decision().left_out == {1}
