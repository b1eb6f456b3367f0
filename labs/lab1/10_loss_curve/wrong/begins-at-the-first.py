"""The loss curve of a run that was killed and resumed."""

import math


def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the rows (step, loss) that belong to the current history of the run, in the order of steps.

    Rows come in the order in which they were logged. Where the step goes back, the run was resumed from a checkpoint:
    rows logged earlier for that step and for later steps are no longer true.
    """
    merged: list[tuple[int, float]] = []
    for step, loss in rows:
        while merged and merged[-1][0] >= step:
            merged.pop()
        merged.append((step, loss))
    return merged


def smooth(losses: list[float], beta: float) -> list[float]:
    """Return for each step the mean of the losses up to it, in which each weighs `beta` times as much as the next.

    A loss that is not finite has no weight and does not change the mean, which is nan before the first finite loss.
    """
    total, weight, smoothed = 0.0, 0.0, []
    for loss in losses:
        if math.isfinite(loss):
            total, weight = (beta * total + (1 - beta) * loss if weight else loss), 1
        smoothed.append(total / weight if weight else math.nan)
    return smoothed
