"""The loss curve of a run that was killed and went on."""

import math


def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The rows (step, loss) that the run as it is now has gone through, in the order of steps.

    Rows are in the order in which they were logged. Where the step goes back, the run was resumed from a checkpoint:
    what was logged before for that step and those after it is no longer true.
    """
    merged: list[tuple[int, float]] = []
    for step, loss in rows:
        while merged and merged[-1][0] >= step:
            merged.pop()
        merged.append((step, loss))
    return merged


def smooth(losses: list[float], beta: float) -> list[float]:
    """For each step the mean of the losses up to it, in which each weighs `beta` times as much as the next.

    A loss that is not finite weighs nothing, and leaves the mean as it was, nan if there was none yet.
    """
    smoothed = []
    for place in range(len(losses)):
        window = [x for x in losses[max(0, place - 5) : place + 6] if math.isfinite(x)]
        smoothed.append(sum(window) / len(window) if window else math.nan)
    return smoothed
