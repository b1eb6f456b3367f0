"""The changes of a world that goes on when ranks are lost (`comm.on_loss = "shrink"`): who went, and who came.

At each change every process goes on in the files of its new place, so that a change looks like another attempt. A rank
is a place among the members; an identity is a process's number for all its life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from frog.runs.attempts import Attempt
from frog.runs.schema import MembershipEvent


@dataclass(frozen=True)
class Change:
    """One change of the world, in the same processes."""

    before: int
    """Which of the run's attempts it ended."""
    after: int
    """Which it began."""
    step: int
    """The last step that the world before completed."""
    lost: dict[int, int]
    """By identity, the rank that it was in the world before."""
    joined: list[int]
    """By identity."""
    replaced: dict[int, int]
    """Of those who joined, by identity, in whose place the launcher had started them."""
    members: list[int]
    """Who is there since, by identity, in the order of their ranks."""
    took_ns: int
    """From where a rank that was there learnt of it to where it went on: the longest."""


def find_changes(attempts: Sequence[Attempt]) -> list[Change]:
    """The changes of a run, in order. One that another overtook before a step was taken is told with that."""
    found: list[Change] = []
    members: list[int] = []
    before = 0
    identities, places = identities_of(attempts), places_of(attempts)
    for after, attempt in enumerate(attempts):
        said = membership_of(attempt)
        if said and (kept := said[0].members):
            lost = {who: rank for rank, who in enumerate(members) if who not in kept}
            joined = [who for who in kept if who not in members]
            took_ns = max((event.took_ns for event in said if event.identity not in joined), default=0)
            replaced = {who: places[pid] for pid, who in identities.items() if who in joined and pid in places}
            found.append(Change(before, after, said[0].step, lost, joined, replaced, kept, took_ns))
            members, before = kept, after
        elif _begins_anew(attempts, after):
            members, before = attempt.ranks, after
    return found


def membership_of(attempt: Attempt) -> list[MembershipEvent]:
    """What its workers said of the change with which it began; nothing if it began otherwise."""
    events = [worker.last(MembershipEvent) for _, worker in sorted(attempt.workers.items())]
    return [event for event in events if event is not None]


def identities_of(attempts: Sequence[Attempt]) -> dict[int, int]:
    """By process, as far as its workers have said: that of who began the run is its first rank."""
    found = {}
    for number, attempt in enumerate(attempts):
        for rank, worker in attempt.workers.items():
            if worker.start is None:
                continue
            if (change := worker.last(MembershipEvent)) is not None:
                found[worker.start.pid] = change.identity
            elif _begins_anew(attempts, number):
                found[worker.start.pid] = rank
    return found


def places_of(attempts: Sequence[Attempt]) -> dict[int, int]:
    """By process that the launcher started in the place of a lost one: the identity of that."""
    lost_before = {event.pid: event.lost for attempt in attempts for event in attempt.replacements}
    identities = identities_of(attempts)
    return {pid: place for pid in lost_before if (place := _place_of(pid, lost_before, identities)) is not None}


def _place_of(pid: int, lost_before: Mapping[int, int], identities: Mapping[int, int]) -> int | None:
    """In whose place a process was started. Others, of whom nobody heard, may have been started there in between."""
    for _ in lost_before:  # so many at most, whatever a damaged file says
        if (lost := lost_before.get(pid)) is None:
            break
        if lost in identities:
            return identities[lost]
        pid = lost
    return None


def _begins_anew(attempts: Sequence[Attempt], number: int) -> bool:
    """Whether an attempt did not begin by a change of the one before."""
    attempt = attempts[number]
    return not membership_of(attempt) and not (number and goes_on(attempt, attempts[number - 1]))


def goes_on(attempt: Attempt, before: Attempt) -> bool:
    """Whether processes of the attempt before are at work in it."""
    return bool(_processes(attempt) & _processes(before))


def _processes(attempt: Attempt) -> set[tuple[str, int]]:
    return {(worker.start.host, worker.start.pid) for worker in attempt.workers.values() if worker.start}


def follow_processes(attempts: Sequence[Attempt]) -> None:
    """Give what the launcher said of a process's end to the attempt, and the rank, that the process had come to.

    The launcher knows it by the rank as which it was started.
    """
    for number, first in enumerate(attempts):
        chain = [first]
        for later in attempts[number + 1 :]:
            if later.launch is not None or not goes_on(later, chain[-1]):
                break
            chain.append(later)
        if first.launch is None or len(chain) == 1:
            continue
        for kind in ("exits", "hangs", "left_out"):
            events = getattr(first, kind)
            setattr(first, kind, [])
            for event in events:
                own, rank = _last_of(chain, event.pid, event.rank)
                getattr(own, kind).append(msgspec.structs.replace(event, rank=rank))
        first.end, chain[-1].end = None, first.end


def _last_of(chain: Sequence[Attempt], pid: int, rank: int) -> tuple[Attempt, int]:
    """The last attempt that a process was at work in, and its rank there."""
    for attempt in reversed(chain):
        for own, worker in attempt.workers.items():
            if worker.start is not None and worker.start.pid == pid:
                return attempt, own
    return chain[0], rank
