"""The loss curve of a run that was killed and resumed."""

import math



def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    kept: list[tuple[int, float]] = []
    for row in rows:
        while kept and kept[-1][0] >= row[0]:
            kept.pop()
        kept.append(row)
    return kept


def smooth(losses: list[float], beta: float) -> list[float]:
    total = weight = 0.0
    values = []
    for loss in losses:
        if not math.isnan(loss):
            total, weight = beta * total + loss, beta * weight + 1.0
        values.append(total / weight if weight else math.nan)
    return values
