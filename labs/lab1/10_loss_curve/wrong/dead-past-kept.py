"""The loss curve of a run that was killed and went on."""

import math


def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The rows (step, loss) that the run as it is now has gone through, in the order of steps.

    Rows are in the order in which they were logged. Where the step goes back, the run was resumed from a checkpoint:
    what was logged before for that step and those after it is no longer true.
    """
    merged: list[tuple[int, float]] = []
    for step, loss in rows:
        merged = [row for row in merged if row[0] != step]
        merged.append((step, loss))
    return sorted(merged)


def smooth(losses: list[float], beta: float) -> list[float]:
    """For each step the mean of the losses up to it, in which each weighs `beta` times as much as the next.

    A loss that is not finite weighs nothing, and leaves the mean as it was, nan if there was none yet.
    """
    total, weight, smoothed = 0.0, 0.0, []
    for loss in losses:
        if math.isfinite(loss):
            total, weight = beta * total + loss, beta * weight + 1
        smoothed.append(total / weight if weight else math.nan)
    return smoothed
