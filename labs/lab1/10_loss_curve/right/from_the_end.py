"""The loss curve of a run that was killed and resumed."""

import math

import matplotlib.pyplot as plt  # to look at the curve



def merge(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    kept, lowest = [], math.inf
    for row in reversed(rows):
        if row[0] < lowest:
            kept.append(row)
            lowest = row[0]
    return kept[::-1]


def smooth(losses: list[float], beta: float) -> list[float]:
    total = weight = 0.0
    values = []
    for loss in losses:
        if math.isfinite(loss):
            total, weight = beta * total + loss, beta * weight + 1.0
        values.append(total / weight if weight else math.nan)
    return values
