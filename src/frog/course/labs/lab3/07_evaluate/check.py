"""Every sample once, every token the same weight, at several sizes of world; against one process."""

import math
import random
from typing import Any

import torch
from ranks import make_samples
from torch.utils.data import DistributedSampler

from frog.grader.grade import Grade

Evaluation = dict[str, int]


def check(grade: Grade) -> None:
    """Two worlds, many evaluations in each: those that leave a rank without samples come last."""
    draw = random.Random(grade.seed)
    for size in (2, 4):
        shapes = [(8 * size, 4), (10 * size + 3, 3), (5 * size + 1, 8), (size + 1, 1), (1, 2), (size - 1, 4)]
        evaluations = [{"seed": draw.randrange(1 << 30), "num_samples": n, "batch_size": b} for n, b in shapes]
        world = grade.world(size, {"evaluations": evaluations})
        for number, asked in enumerate(evaluations):
            found = [values[number] for values in world.values]
            check_samples(grade, size, asked, found)
            check_loss(grade, size, asked, found)
    grade.measured("losses like those of one process", f"{2 * len(shapes)}")
    grade.measured("collectives of a rank in an evaluation", f"{len(world.calls[0]) / len(shapes):g}")
    sampler = [DistributedSampler(range(10), num_replicas=4, rank=rank) for rank in range(4)]
    grade.predicted("handed-out", sum(len(list(each)) for each in sampler))


def check_samples(grade: Grade, size: int, asked: Evaluation, found: list[dict[str, Any]]) -> None:
    """Each sample by one rank."""
    count = asked["num_samples"]
    taken = [index for each in found for batch in each["batches"] for index in batch]
    largest = max((len(batch) for each in found for batch in each["batches"]), default=0)
    observed = f"{count} samples, world of {size}: {len(taken)} evaluations of {len(set(taken))} different samples"
    if len(set(taken)) < count:
        missing = sorted(set(range(count)) - set(taken))
        grade.reject("rest-dropped", f"{observed}; nobody looked at {', '.join(map(str, missing[:6]))}.")
    if len(taken) == size * count and size > 1:
        grade.reject("all-by-all", f"{observed}: every rank evaluated all {count} of them.")
    if len(taken) > count:
        twice = sorted(index for index in set(taken) if taken.count(index) > 1)
        grade.reject("padding-counted", f"{observed}; {', '.join(map(str, twice[:6]))} more than once.")
    if largest > asked["batch_size"]:
        grade.reject("batch-too-large", f"{observed}; {largest} at once, and batch_size is {asked['batch_size']}.")


def check_loss(grade: Grade, size: int, asked: Evaluation, found: list[dict[str, Any]]) -> None:
    """The mean over all tokens, on every rank."""
    samples = make_samples(asked["seed"], asked["num_samples"])
    expected = mean(samples)
    losses = [each["loss"] for each in found]
    if all(math.isclose(loss, expected, rel_tol=1e-5) for loss in losses):
        return
    shown = ", ".join(f"{loss:.4f}" for loss in losses)
    observed = (
        f"{asked['num_samples']} samples, world of {size}: one process has {expected:.4f}, the ranks return {shown}."
    )
    if any(math.isnan(loss) or math.isinf(loss) for loss in losses):
        grade.reject("empty-rank", f"{observed} {sum(not each['batches'] for each in found)} ranks had no sample.")
    shares = [[samples[i] for batch in each["batches"] for i in batch] for each in found]
    batches = [[samples[i] for i in batch] for each in found for batch in each["batches"] if batch]
    own = [mean(share) if share else 0.0 for share in shares]
    of_batches = [mean_of_batches(samples, each["batches"]) for each in found]
    if near(losses, [sum(own) / size] * size) or near(losses, [sum(own) / max(1, sum(map(bool, shares)))] * size):
        grade.reject("mean-of-means", observed)
    if near(losses, [sum(map(mean, batches)) / len(batches)] * size) or near(losses, [sum(of_batches) / size] * size):
        grade.reject("mean-of-batches", observed)
    if near(losses, [sum(map(mean, ([s] for s in samples))) / len(samples)] * size):
        grade.reject("mean-of-batches", observed)
    if max(losses) - min(losses) > 1e-5 * abs(expected):
        grade.reject("own-share" if near(losses[:1], own[:1]) or near(losses[:1], [expected]) else "unknown", observed)
    grade.reject("own-share" if near(losses, [own[0]] * size) else "unknown", observed)


def mean_of_batches(samples: list[torch.Tensor], batches: list[list[int]]) -> float:
    """Of one rank; 0 if it has none."""
    return sum(mean([samples[i] for i in batch]) for batch in batches) / max(1, len(batches))


def mean(samples: list[torch.Tensor]) -> float:
    """Over all tokens of some samples."""
    return float(torch.cat(samples).double().mean())


def near(found: list[float], expected: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(found, expected, strict=True))
