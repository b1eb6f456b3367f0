"""Events back from disk, with the steps that were taken twice kept apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from frog.core.runfolder import RunFolder

Event = dict[str, Any]


@dataclass
class RankEvents:
    """What one rank said, in order."""

    rank: int
    events: list[Event] = field(default_factory=list)
    num_torn_lines: int = 0
    """Lines that are not whole JSON: what a kill cut off."""

    def of(self, kind: str) -> list[Event]:
        """All events of one kind, in the order in which they were written."""
        return [event for event in self.events if event["event"] == kind]

    def by_step(self, kind: str) -> dict[int, Event]:
        """The events of one kind by step, in order of steps; of a step taken twice the later."""
        return dict(sorted({event["step"]: event for event in self.of(kind)}.items()))


@dataclass
class RunEvents:
    """What all ranks of a run said."""

    ranks: dict[int, RankEvents]

    @property
    def main(self) -> RankEvents:
        """Rank 0, which speaks for all where all agree."""
        return self.ranks.get(0, RankEvents(0))


def read_rank(folder: RunFolder, rank: int) -> RankEvents:
    """Read one rank's events; torn lines are counted and passed over."""
    result = RankEvents(rank)
    with open(folder.rank_events(rank), encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                result.num_torn_lines += bool(line.strip())
                continue
            if isinstance(event, dict) and "event" in event:
                result.events.append(event)
    return result


def read_run(folder: RunFolder) -> RunEvents:
    """Read the events of every rank that left any."""
    return RunEvents({rank: read_rank(folder, rank) for rank in folder.event_ranks()})
