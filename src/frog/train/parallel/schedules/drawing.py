"""Pipeline schedules as text: drawn along time, as lists of actions, and compared."""

from __future__ import annotations

import string
from collections.abc import Iterable

from frog.core.errors import UsageError
from frog.train.parallel.schedules.schedule import Action, Schedule
from frog.train.parallel.schedules.simulation import Simulation

LEGEND = "F forward, B backward{split}, with the number of the micro-batch{chunk}; a dot: the rank waits"


def label(schedule: Schedule, action: Action) -> str:
    """Abbreviate an action: kind and micro-batch; with virtual stages a letter names one of the rank's stages."""
    chunk = action.stage // len(schedule.ranks)
    return f"{action.kind}{action.micro}" + (string.ascii_lowercase[chunk % 26] if schedule.virtual_stages > 1 else "")


def legend(schedule: Schedule) -> str:
    """Explain the letters of `draw` and `table`."""
    return LEGEND.format(
        split=" for the input, W for the weights" if schedule.splits_backward else "",
        chunk=" (a, b, ...: which of the rank's own stages)" if schedule.virtual_stages > 1 else "",
    )


def draw(simulation: Simulation) -> str:
    """Draw a line for each rank, time to the right: the width of an action is its duration.

    Raises:  UsageError if times are so uneven that the picture would be wider than 2000 columns.
    """
    schedule, times = simulation.schedule, simulation.times
    width = max(len(label(schedule, action)) for action in times) + 1
    shortest = min((end - start for start, end in times.values() if end > start), default=1.0)
    if any(abs(start / shortest - round(start / shortest)) > 1e-9 for start, _ in times.values()):
        width += 1  # rounding may remove a column
    columns = round(simulation.makespan / shortest * width)
    if columns > 2000:
        raise UsageError(f"the picture would be {columns} columns wide", "use fewer micro-batches, or --list")
    rows = [["."] * columns for _ in schedule.ranks]
    for action, (start, end) in times.items():
        first, stop = round(start / shortest * width), round(end / shortest * width)
        name = label(schedule, action)
        rows[schedule.rank_of(action.stage)][first:stop] = (name + "-" * (stop - first))[: stop - first - 1] + " "
    return _numbered("".join(row) for row in rows)


def table(schedule: Schedule) -> str:
    """Return a line for each rank: its actions, in order."""
    return _numbered(" ".join(label(schedule, action) for action in actions) for actions in schedule.ranks)


def _numbered(rows: Iterable[str]) -> str:
    return "\n".join(f"rank {rank:>2}  {row.rstrip()}" for rank, row in enumerate(rows))
