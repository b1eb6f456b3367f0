from math import isinf, isnan, nan


def merge(rows):
    best = {}
    for step, loss in rows:
        best = {s: v for s, v in best.items() if s < step}
        best[step] = loss
    return list(best.items())


def smooth(losses, beta):
    mean, count, out = 0.0, 0, []
    for loss in losses:
        if not (isnan(loss) or isinf(loss)):
            count += 1
            mean = beta * mean + (1 - beta) * loss
        out.append(mean / (1 - beta**count) if count else nan)
    return out
