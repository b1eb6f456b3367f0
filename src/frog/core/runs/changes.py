"""The membership changes of an elastic run (`comm.on_loss = "shrink"`): lost and joined ranks.

At each change, every process continues in the files of its new rank, so a change looks like another attempt. A rank is
a position among the members; an identity is a number that a process keeps until it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from frog.core.runs.attempts import Attempt
from frog.core.runs.event_schema import MembershipEvent


@dataclass(frozen=True)
class Change:
    """One change of the world in the same processes."""

    before: int
    """Index of the attempt that it ended."""
    after: int
    """Index of the attempt that it began."""
    step: int
    """Last step that the previous world completed."""
    lost: dict[int, int]
    """Rank in the previous world, by identity."""
    joined: list[int]
    """Identities of the joined ranks."""
    replaced: dict[int, int]
    """For joined ranks that the launcher started as replacements: the replaced identity, by identity."""
    members: list[int]
    """Identities of the members after the change, in rank order."""
    took_ns: int
    """Longest time from when a remaining rank detected the change until it continued."""


def find_changes(attempts: Sequence[Attempt]) -> list[Change]:
    """Return the changes of a run, in order. Changes without a step between them are merged."""
    changes: list[Change] = []
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
            changes.append(Change(before, after, said[0].step, lost, joined, replaced, kept, took_ns))
            members, before = kept, after
        elif _is_fresh_start(attempts, after):
            members, before = attempt.ranks, after
    return changes


def membership_of(attempt: Attempt) -> list[MembershipEvent]:
    """Return the membership events of the change that began this attempt; empty if it began otherwise."""
    events = [worker.last(MembershipEvent) for _, worker in sorted(attempt.workers.items())]
    return [event for event in events if event is not None]


def identities_of(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Return the known identities by process id. A process that began the run has its first rank as identity."""
    identities = {}
    for number, attempt in enumerate(attempts):
        for rank, worker in attempt.workers.items():
            if worker.start is None:
                continue
            if (change := worker.last(MembershipEvent)) is not None:
                identities[worker.start.pid] = change.identity
            elif _is_fresh_start(attempts, number):
                identities[worker.start.pid] = rank
    return identities


def places_of(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Return the replaced identity for each process that the launcher started as a replacement."""
    lost_before = {event.pid: event.lost for attempt in attempts for event in attempt.replacements}
    identities = identities_of(attempts)
    return {pid: place for pid in lost_before if (place := _place_of(pid, lost_before, identities)) is not None}


def _place_of(pid: int, lost_before: Mapping[int, int], identities: Mapping[int, int]) -> int | None:
    """Return the identity that a process replaced. Other replacements may have failed before it, without any event."""
    for _ in lost_before:  # bounded, even if a damaged file has a cycle
        if (lost := lost_before.get(pid)) is None:
            break
        if lost in identities:
            return identities[lost]
        pid = lost
    return None


def _is_fresh_start(attempts: Sequence[Attempt], number: int) -> bool:
    """True if the attempt did not begin with a change of the previous one."""
    attempt = attempts[number]
    return not membership_of(attempt) and not (number and shares_processes(attempt, attempts[number - 1]))


def shares_processes(attempt: Attempt, before: Attempt) -> bool:
    """True if processes of the previous attempt continue in this one."""
    return bool(_processes(attempt) & _processes(before))


def _processes(attempt: Attempt) -> set[tuple[str, int]]:
    return {(worker.start.host, worker.start.pid) for worker in attempt.workers.values() if worker.start}


def follow_processes(attempts: Sequence[Attempt]) -> None:
    """Assign the launcher's events about a process's end to the last attempt and rank of that process.

    The launcher reports the rank that it started the process as.
    """
    for number, first in enumerate(attempts):
        chain = [first]
        for later in attempts[number + 1 :]:
            if later.launch is not None or not shares_processes(later, chain[-1]):
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
    """Return the last attempt of a process, and its rank there."""
    for attempt in reversed(chain):
        for own, worker in attempt.workers.items():
            if worker.start is not None and worker.start.pid == pid:
                return attempt, own
    return chain[0], rank
