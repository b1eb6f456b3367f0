"""All ranks' samplers, one after the other: they need no world."""

import random
from types import ModuleType
from typing import Any

import numpy
import torch


def random_states() -> list[Any]:
    words = numpy.random.get_state()[1].tolist()
    return [torch.get_rng_state(), list(random.getstate()[1]), words]


def shares(learner: ModuleType, case: dict[str, Any], epochs: list[int | None]) -> list[list[list[int]]]:
    """What each rank takes in each of `epochs` (None: without a call of set_epoch)."""
    taken = []
    for rank in range(case["world_size"]):
        for seeded in (torch.manual_seed, random.seed, numpy.random.seed):
            seeded(case["seed"] * 31 + rank)  # as it is when ranks have done different things
        sampler = learner.ShardedSampler(
            case["num_samples"], case["world_size"], rank, seed=case["seed"], drop_last=case["drop_last"]
        )
        taken.append([])
        for epoch in epochs:
            if epoch is not None:
                sampler.set_epoch(epoch)
            taken[-1].append([len(sampler), [int(sample) for sample in sampler]])
    return taken


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    before = random_states()
    sampler = learner.ShardedSampler(50, 2, 0, seed=3)
    sampler.set_epoch(1)
    list(sampler)
    return {
        "states": [before, random_states()],
        "shares": [shares(learner, one, [None, None, 0, 1, 2, 1]) for one in case["cases"]],
        "other seed": shares(learner, case["cases"][0] | {"seed": case["cases"][0]["seed"] + 1000}, [0]),
    }
