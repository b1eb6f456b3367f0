import math


def merge(rows):
    kept = []
    lowest = math.inf
    for step, loss in reversed(rows):
        if step < lowest:
            kept.append((step, loss))
            lowest = step
    return kept[::-1]


def smooth(losses, beta):
    values = []
    for t in range(len(losses)):
        pairs = [x for x in losses[: t + 1] if math.isfinite(x)]
        weights = [beta ** (len(pairs) - 1 - i) for i in range(len(pairs))]
        values.append(sum(w * x for w, x in zip(weights, pairs)) / sum(weights) if pairs else math.nan)
    return values
