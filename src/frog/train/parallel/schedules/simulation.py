"""Compute a pipeline schedule's time, bubble and memory without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from frog.core.errors import FrogError
from frog.train.parallel.schedules.schedule import Action, Kind, Schedule, in_order, problems


@dataclass(frozen=True)
class Simulation:
    """The times of each action, and the numbers that follow from them."""

    schedule: Schedule
    times: Mapping[Action, tuple[float, float]]
    """Start and end, in the order in which actions can run."""
    peak_in_flight: tuple[int, ...]
    """Per rank: the most stage inputs whose F has run and whose last action (B, or W where there is one) has not. Each
    is one micro-batch through one stage; with virtual stages a stage is that much thinner."""

    @property
    def makespan(self) -> float:
        return max(end for _, end in self.times.values())

    @property
    def bubble(self) -> float:
        """The fraction of the ranks' time spent waiting, from the first action's start to the last one's end."""
        busy = sum(end - start for start, end in self.times.values())
        return 1 - busy / (self.makespan * len(self.schedule.ranks))


def simulate(
    schedule: Schedule,
    forward_time: float = 1.0,
    backward_time: float = 1.0,
    weight_time: float = 1.0,
    send_time: float = 0.0,
) -> Simulation:
    """Run every action as soon as its rank is free and its input has arrived.

    Units:   any, the same for all four times. The first three are for one rank's whole share of the layers and one
             micro-batch; a virtual stage takes its part of them. `backward_time` is for the gradient of the input,
             `weight_time` for that of the weights; an unsplit backward pass takes both.
    Assumes: stages take the same time, and sending blocks neither rank.
    Raises:  FrogError if the schedule has a deadlock.
    """
    whole = 0.0 if schedule.splits_backward else weight_time
    costs: dict[Kind, float] = {"F": forward_time, "B": backward_time + whole, "W": weight_time}
    times: dict[Action, tuple[float, float]] = {}
    free = [0.0] * len(schedule.ranks)
    for rank, action in in_order(schedule):
        needed = schedule.needs(action)
        travels = needed is not None and schedule.rank_of(needed.stage) != rank
        arrived = times[needed][1] + send_time * travels if needed is not None else 0.0
        start = max(free[rank], arrived)
        free[rank] = start + costs[action.kind] / schedule.virtual_stages
        times[action] = (start, free[rank])
    if len(times) < sum(map(len, schedule.ranks)):
        raise FrogError(f"schedule {schedule.name} cannot run to completion\n  - " + "\n  - ".join(problems(schedule)))
    return Simulation(schedule, times, tuple(_peak(schedule, rank) for rank in range(len(schedule.ranks))))


def _peak(schedule: Schedule, rank: int) -> int:
    change = Counter({"F": 1, "W" if schedule.splits_backward else "B": -1})
    in_flight = peak = 0
    for action in schedule.ranks[rank]:
        in_flight += change[action.kind]
        peak = max(peak, in_flight)
    return peak


def bubble_formula(
    name: str,
    num_ranks: int,
    num_micro: int,
    virtual_stages: int = 1,
    forward_time: float = 1.0,
    backward_time: float = 1.0,
    weight_time: float = 1.0,
) -> float:
    """Return the textbook's bubble as a fraction of the total time: p ranks, m micro-batches, v virtual stages.

    gpipe and 1f1b (p-1)/(m+p-1); interleaved (p-1)/(vm+p-1); zero_bubble (p-1)(F+B-W) idle and m(F+B+W) of work.

    Units:   as in `simulate`.
    Assumes: stages take the same time and sending takes no time; for zero_bubble also W <= F, B.
    Source:  Narayanan et al. 2021, section 2.2; Qi et al. 2023, table 1.
    """
    work = forward_time + backward_time + weight_time
    idle = {
        "interleaved": work / virtual_stages,
        "zero_bubble": forward_time + backward_time - weight_time,
    }.get(name, work)
    return (num_ranks - 1) * idle / (num_micro * work + (num_ranks - 1) * idle)
