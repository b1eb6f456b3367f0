"""Run all ranks' samplers in turn in one process, and each in a separate process."""

import os
import random
from types import ModuleType
from typing import Any

import numpy
import torch


def random_states() -> list[Any]:
    words = numpy.random.get_state()[1].tolist()
    return [torch.get_rng_state(), list(random.getstate()[1]), words]


def shares(
    learner: ModuleType, case: dict[str, Any], epochs: list[int | None], kinds: set[str]
) -> list[list[list[int]]]:
    """Return what each rank takes in each of `epochs` (None: without a call of set_epoch).

    Adds the names of the samples' types to `kinds`.
    """
    taken = []
    for rank in range(case["world_size"]):
        for seeded in (torch.manual_seed, random.seed, numpy.random.seed):
            seeded(case["seed"] * 31 + rank)  # as if the ranks had done different work before
        sampler = learner.ShardedSampler(
            case["num_samples"], case["world_size"], rank, seed=case["seed"], drop_last=case["drop_last"]
        )
        taken.append([])
        for epoch in epochs:
            if epoch is not None:
                sampler.set_epoch(epoch)
            samples = list(sampler)
            kinds.update(type(sample).__name__ for sample in samples)
            taken[-1].append([len(sampler), [int(sample) for sample in samples]])
    return taken


def states_around(learner: ModuleType, seed: int) -> list[Any]:
    """Return the process's random states before and after an epoch of samples."""
    for seeded in (torch.manual_seed, random.seed, numpy.random.seed):
        seeded(seed)
    before = random_states()
    sampler = learner.ShardedSampler(50, 2, 0, seed=3)
    sampler.set_epoch(1)
    list(sampler)
    return [before, random_states()]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    kinds: set[str] = set()
    other = case["cases"][0] | {"seed": case["cases"][0]["seed"] + 1000}
    return {
        "states": [states_around(learner, 11), states_around(learner, 12)],
        "shares": [shares(learner, one, [None, None, *case["epochs"]], kinds) for one in case["cases"]],
        "other seed": shares(learner, other, [0], kinds),
        "kinds": sorted(kinds),
    }


def own_share(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return what this rank takes, from a sampler created in its own process."""
    sampler = learner.ShardedSampler(
        case["num_samples"],
        case["world_size"],
        int(os.environ["RANK"]),
        seed=case["seed"],
        drop_last=case["drop_last"],
    )
    return [int(sample) for sample in sampler]
