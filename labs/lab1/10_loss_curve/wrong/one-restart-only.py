"""The loss curve of a run that was killed and resumed."""

import math



def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    cuts = [place for place in range(1, len(rows)) if rows[place][0] <= rows[place - 1][0]]
    if not cuts:
        return rows
    cut = cuts[-1]
    return [row for row in rows[:cut] if row[0] < rows[cut][0]] + rows[cut:]


def smooth(losses: list[float], beta: float) -> list[float]:
    total = weight = 0.0
    values = []
    for loss in losses:
        if math.isfinite(loss):
            total, weight = beta * total + loss, beta * weight + 1.0
        values.append(total / weight if weight else math.nan)
    return values
