"""Finds a cell that hangs, in seconds, and says which rank waits where and for whom.

A cell hangs when each of its ranks has ended it or waits in torch.distributed, none moves data, and they do not all
wait in one and the same collective, which may only be slow. This is seen from outside (`ProgramWatch`), so that no
timeout of a collective has to pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from frog.core.runs.observed import Observed, read_observed, read_statuses, write_request
from frog.core.runs.outcome import name_ranks
from frog.hooks import describe_hang
from frog.launch.cells.cell_places import with_places
from frog.launch.stalls import describe_rank, lines_by_text, oldest_pending
from frog.launch.watchdog import Finding, ProgramWatch, Role, WatchLimits, take_snapshots

LOOK_S = 0.5
_DEADLINE_S = 2.0
"""Time in which no rank moves data, computes or finishes a collective."""
_SLOW_S = 60.0
"""The same if all ranks are in the same collective."""
_ANSWER_S = 30.0
"""Time for the ranks to say where they are. Without their answers, an old status might look like a hang."""


@dataclass(frozen=True)
class CellHang:
    """A cell that hangs."""

    text: str
    """Who waits where, a line for each group of ranks."""
    waiting: frozenset[int]


@dataclass
class _Question:
    number: int
    asked_at: float


class HangWatch:
    """Watches the ranks of one cell. folder: where their observers write. ranks: those that run the cell."""

    def __init__(self, folder: Path, ranks: Set[int], world_size: int) -> None:
        self._folder, self._ranks, self._world_size = folder, ranks, world_size
        self._watch = ProgramWatch(WatchLimits(deadline_s=_DEADLINE_S))
        self._question: _Question | None = None

    def look(self, finished: Mapping[int, str], now: float) -> CellHang | None:
        """Return the hang, once the ranks have said where they are.

        finished: ranks that have ended the cell, and how: "has finished the cell".
        """
        statuses = {rank: own for rank, own in read_statuses(self._folder, 0).items() if rank in self._ranks}
        if statuses.keys() != self._ranks:
            return None
        snapshots = take_snapshots(statuses, with_children=True)
        for rank in finished:
            snapshots[rank] = replace(snapshots[rank], ended=True)
        finding = self._watch.look(snapshots, now)
        if self._question is None:
            if finding is not None and finding.ends:
                self._question = _Question(write_request(self._folder, "hang"), now)
            return None
        waited_s = now - self._question.asked_at
        if finding is None or not finding.ends or self._watch.still_s(now) < waited_s:
            self._question = None  # a rank has moved on: on a busy machine, its status was old
            return None
        running = [own for rank, own in statuses.items() if rank not in finished]
        if waited_s < _ANSWER_S and any(own.answered < self._question.number for own in running):
            return None
        return self._answered(finding, finished, now)

    def _answered(self, finding: Finding, finished: Mapping[int, str], now: float) -> CellHang | None:
        evidence = read_observed(self._folder).get(0, {})
        waiting = frozenset(self._ranks - finished.keys())
        if self._watch.still_s(now) < _SLOW_S and _share_a_collective(waiting, evidence, self._world_size):
            self._question = None
            return None
        return CellHang(self._describe(finding, finished, evidence), waiting)

    def _describe(self, finding: Finding, finished: Mapping[int, str], evidence: Mapping[int, Observed]) -> str:
        waiting = self._ranks - finished.keys()
        awaited = [rank for rank in range(self._world_size) if rank not in waiting]
        for_whom = f" for {name_ranks(awaited)}" if awaited else " for each other"
        verb = "wait" if len(waiting) > 1 else "waits"
        lines = [f"hang: {name_ranks(sorted(waiting))} {verb}{for_whom}"]
        texts = {rank: self._describe_rank(rank, finding, finished, evidence) for rank in range(self._world_size)}
        lines += lines_by_text(texts)
        return with_places("\n".join(filter(None, [*lines, describe_hang(self._folder)])))

    def _describe_rank(
        self, rank: int, finding: Finding, finished: Mapping[int, str], evidence: Mapping[int, Observed]
    ) -> str:
        if rank not in self._ranks:
            return "is not in this cell"
        if rank in finished:
            return finished[rank]
        return describe_rank(finding.roles.get(rank, Role.WAITS), evidence.get(rank))


def _share_a_collective(waiting: Set[int], evidence: Mapping[int, Observed], world_size: int) -> bool:
    """True if all members of a group are in the same collective of it, with the same sizes, and no other rank waits."""
    seen = set()
    members: set[int] = set()
    for rank in waiting:
        own = evidence.get(rank)
        entry = oldest_pending(own) if own is not None else None
        if own is None or entry is None or own.collectives is None or entry.p2p:
            return False
        seen.add((entry.group, entry.seq, entry.op, str(entry.sizes), str(entry.dtypes)))
        group = own.collectives.groups.get(entry.group)
        members |= set(group.ranks) if group is not None and group.ranks else set(range(world_size))
    return len(seen) == 1 and members == set(waiting)
