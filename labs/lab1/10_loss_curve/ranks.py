"""Merge logs with restarts, and smooth losses of every kind."""

import math
import random
from types import ModuleType
from typing import Any


def make_logs(seed: int) -> dict[str, list[tuple[int, float]]]:
    """Draw logs, by name."""
    numbers = random.Random(seed)

    def rows(first: int, last: int) -> list[tuple[int, float]]:
        return [(step, round(numbers.uniform(2, 8), 4)) for step in range(first, last + 1)]

    at = numbers.randint(5, 9)
    return {
        "without a restart": rows(1, 8),
        "with a restart that caught up": rows(1, at + 4) + rows(at, at + 6),
        "with a restart that has not caught up yet": rows(1, at + 6) + rows(at, at + 2),
        "with two restarts": rows(1, at + 8) + rows(at, at + 4) + rows(at - 3, at + 1),
        "with three restarts": rows(1, at + 8) + rows(at - 3, at + 1) + rows(at, at + 5) + rows(at + 3, at + 6),
        "of every tenth step": [(10 * s, v) for s, v in rows(1, 9) + rows(4, 6)],
        "that is empty": [],
    }


def make_losses(seed: int) -> tuple[list[list[float]], float]:
    """Draw lists of losses, each with a beta."""
    numbers = random.Random(seed + 1)
    falling = [8 / (1 + step / 5) + numbers.uniform(-0.5, 0.5) for step in range(20)]
    holes = list(falling)
    holes[numbers.randint(4, 8)] = math.nan
    holes[numbers.randint(10, 14)] = math.inf
    return [[7.6] * 5, falling, holes, [math.nan, 3.0, 2.0], [numbers.uniform(1, 9)], []], numbers.uniform(0.8, 0.95)


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    losses, beta = make_losses(case["seed"])
    merged = {name: [list(row) for row in learner.merge(list(rows))] for name, rows in make_logs(case["seed"]).items()}
    smoothed = [list(learner.smooth(list(some), beta)) for some in losses]
    other_end = list(learner.smooth([*losses[1][:-1], losses[1][-1] + 5.0], beta))
    return {"merged": merged, "smoothed": smoothed, "other end": other_end}
