"""Time of ranks that exchange messages, such as the stages of a pipeline: their recorded steps, played together.

A message starts when both sides have reached it, as NCCL's do, and a collective when all of its ranks have. A rank's
rows are played until it waits for another rank, whose rows are played next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from frog.core.errors import FrogError
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.program.program_time import NotYet, ProgramTime, StepClock


@dataclass
class Meetings:
    """When each rank reaches a message or a collective. Those of one rank alone start at once."""

    members: Mapping[str, set[int]]
    arrived: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def arrive(self, name: str, rank: int, at: float) -> None:
        """Note that a rank is ready for a message or a collective."""
        self.arrived[name][rank] = at

    def ready(self, name: str, line: int) -> float:
        """Return when the last of its ranks is ready.

        Raises:  NotYet if one of them has not reached it.
        """
        arrived = self.arrived[name]
        if len(arrived) < len(self.members[name]):
            missing = sorted(self.members[name] - arrived.keys())
            raise NotYet(f"waits for rank {missing[0]}")
        return max(arrived.values())


def play_together(
    facts: Mapping[int, dict[str, Any]], cluster: Cluster, num_gpus: int, constants: Constants = FITTED
) -> dict[int, ProgramTime]:
    """Return the time of the step of each rank. All begin at once, and wait for the last one at the end.

    Raises:  FrogError if ranks wait for each other forever.
    """
    shared = shared_groups(facts)
    meetings = Meetings(_members(facts, shared))
    clocks = {rank: StepClock(cluster, constants, rank=rank, meetings=meetings, shared=shared[rank]) for rank in facts}
    ranks = {rank: _play(clocks[rank], facts[rank], num_gpus) for rank in facts}
    times: dict[int, ProgramTime] = {}
    waiting: dict[int, str] = {}
    while len(times) < len(ranks):
        before = sum(map(len, meetings.arrived.values())), len(times)
        for rank in ranks.keys() - times.keys():
            state = next(ranks[rank])
            if isinstance(state, ProgramTime):
                times[rank] = state
            else:
                waiting[rank] = state
        if before == (sum(map(len, meetings.arrived.values())), len(times)):
            stuck = (f"rank {rank} {waiting[rank]}" for rank in sorted(ranks.keys() - times.keys()))
            raise FrogError(f"the ranks wait for each other: {'; '.join(stuck)}")
    longest = max(time.total for time in times.values())
    for time in times.values():
        time.waiting += longest - time.total
    return {rank: times[rank] for rank in sorted(times)}


def _play(clock: StepClock, facts: dict[str, Any], num_gpus: int) -> Iterator[ProgramTime | str]:
    """Play the rows of a rank; yield what it waits for whenever it cannot continue, and its time at the end."""
    for row in [*facts["rows"], None]:
        while True:
            try:
                if row is None:
                    yield clock.finish(num_gpus)
                else:
                    clock.play_row(row)
                break
            except NotYet as missing:
                yield f"{missing} at {facts['lines'][clock.waits_at]}"


def shared_groups(facts: Mapping[int, dict[str, Any]]) -> dict[int, dict[int, str]]:
    """Return the groups in which several of these ranks communicate equally often, by rank and index: their names."""
    num_calls: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for rank, facts_of_rank in facts.items():
        for row in facts_of_rank["rows"]:
            if row[0] == "collective":
                num_calls[tuple(facts_of_rank["groups"][row[9]])][rank] += 1
    shared: dict[int, dict[int, str]] = {rank: {} for rank in facts}
    for group, calls in num_calls.items():
        if len(calls) > 1 and len(set(calls.values())) == 1:
            for rank in calls:
                shared[rank][facts[rank]["groups"].index(list(group))] = f"collective {group}"
    return shared


def _members(facts: Mapping[int, dict[str, Any]], shared: dict[int, dict[int, str]]) -> dict[str, set[int]]:
    """Return the ranks of each message and each shared collective."""
    members: dict[str, set[int]] = defaultdict(set)
    for rank, facts_of_rank in facts.items():
        numbers: Counter[str] = Counter()
        for row in facts_of_rank["rows"]:
            if row[0] == "messages":
                for _, _, _, name in row[5]:
                    members[name].add(rank)
            elif row[0] == "collective" and row[9] in shared[rank]:
                group = shared[rank][row[9]]
                members[f"{group} {numbers[group]}"].add(rank)
                numbers[group] += 1
    return members
