"""Draw the ranks' measurements from a seed, and call the learner's function with them."""

import random
from types import ModuleType
from typing import Any

import torch.distributed as dist


def measured(case: dict[str, Any], rank: int) -> dict[str, list[Any]]:
    """Draw losses, tokens and step_s of a rank's batches. Small batches and high ranks have high losses."""
    if case["kind"] == "predicted":
        return {"losses": [[2.0], [4.0]][rank], "tokens": [[1000], [500]][rank], "step_s": [0.5]}
    draw = random.Random(case["seed"] * 100 + rank)
    num = case["batches"][rank]
    full = case["full"]
    tokens = [full] * (num - 1) + [draw.randint(full // 9, full // 3) | 1] if num else []
    losses = [draw.uniform(1, 2) + rank + 2 * (n == num - 1) for n in range(num)]
    return {"losses": losses, "tokens": tokens, "step_s": [draw.uniform(0.1, 0.4) for _ in range(num)]}


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    return [metrics(learner, measured(case, dist.get_rank())) for case in cases["cases"]]


def metrics(learner: ModuleType, figures: dict[str, list[Any]]) -> Any:
    try:
        return learner.world_metrics(**figures)
    except OverflowError as problem:  # from math.exp: its argument was not a loss
        return str(problem)
