"""Check that every sample counts once and every token equally, in several worlds, against one process."""

import math
import random
from typing import Any

import torch
from ranks import make_samples
from torch.utils.data import DistributedSampler

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Evaluation = dict[str, int]


def check(grade: Grade) -> None:
    """Check many evaluations in each of two worlds; those that leave a rank without samples come last."""
    draw = random.Random(grade.seed)
    for size in (2, 4):
        shapes = [(8 * size, 4), (10 * size + 3, 3), (5 * size + 1, 8), (size + 1, 1), (1, 2), (size - 1, 4)]
        evaluations = [{"seed": draw.randrange(1 << 30), "num_samples": n, "batch_size": b} for n, b in shapes]
        world = grade.world(size, {"evaluations": evaluations})
        unwaited = sum(call.is_async and not call.waited for calls in world.calls for call in calls)
        for number, asked in enumerate(evaluations):
            found = [values[number] for values in world.values]
            check_samples(grade, size, asked, found)
            check_loss(grade, size, asked, found, unwaited)
            check_kind(grade, size, found)
    check_shares(grade, evaluations, world.values)
    grade.measured("losses equal to those of one process", f"{2 * len(shapes)}")
    grade.measured("collectives per rank and evaluation", f"{len(world.calls[0]) / len(shapes):g}")
    sampler = [DistributedSampler(range(10), num_replicas=4, rank=rank) for rank in range(4)]
    grade.predicted("handed-out", sum(len(list(each)) for each in sampler))


def check_samples(grade: Grade, size: int, asked: Evaluation, found: list[dict[str, Any]]) -> None:
    """Check that exactly one rank evaluates each sample."""
    total, shares = asked["num_samples"], [[index for batch in each["batches"] for index in batch] for each in found]
    taken = [index for share in shares for index in share]
    missing = sorted(set(range(total)) - set(taken))
    twice = sorted(index for index in set(taken) if taken.count(index) > 1)
    observed = f"{count(total, 'sample')}, world of {size}: {count(len(taken), 'evaluation')}"
    observed = f"{observed} of {count(len(set(taken)), 'different sample')}"
    if not taken:
        grade.reject("unknown", f"{observed}: no rank called token_losses.")
    if len(taken) == size * total and size > 1 and not missing:
        grade.reject("all-by-all", f"{observed}: every rank evaluated all {total} samples.")
    if missing and twice:
        again = any(len(share) > len(set(share)) for share in shares)
        text = f"{observed}; {samples(missing)} by no rank, {samples(twice)} more than once"
        grade.reject("unknown" if again else "own-order", f"{text}{', by one rank' if again else ''}.")
    if missing:
        grade.reject(
            why_missing(shares, len(missing), asked["batch_size"]), f"{observed}; no rank evaluated {samples(missing)}."
        )
    if twice:
        grade.reject(why_twice(shares, total), f"{observed}; {samples(twice)} more than once.")
    largest = max(len(batch) for each in found for batch in each["batches"])
    if largest > asked["batch_size"]:
        grade.reject("batch-too-large", f"{observed}; {largest} in one call, but batch_size is {asked['batch_size']}.")


def why_missing(shares: list[list[int]], missing: int, batch_size: int) -> str:
    """Return `rest-dropped` if all ranks have the same number of samples, or full batches, and few are missing."""
    even = len({len(share) for share in shares}) == 1 and missing < len(shares)
    whole = all(len(share) % batch_size == 0 for share in shares) and missing < len(shares) * batch_size
    return "rest-dropped" if even or whole else "unknown"


def why_twice(shares: list[list[int]], total: int) -> str:
    """Explain repeated samples: blocks that overlap, or shares padded to the longest."""
    sets = [set(share) for share in shares if share]
    blocks = all(
        len(own) == len(share) == max(own) - min(own) + 1 for own, share in zip(sets, filter(None, shares), strict=True)
    )
    if blocks and any(len(own) > 1 for own in sets):
        return "blocks-overlap"
    return "padding-counted" if sum(map(len, shares)) == -(-total // len(shares)) * len(shares) else "unknown"


def samples(numbers: list[int]) -> str:
    """Format numbers as `sample 22` or `samples 3, 4, ...`."""
    shown = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"{'sample' if len(numbers) == 1 else 'samples'} {shown}"


def check_kind(grade: Grade, size: int, found: list[dict[str, Any]]) -> None:
    """Check that the result is a float, as the signature says."""
    if kind := next((each["kind"] for each in found if each["kind"]), ""):
        grade.reject("tensor-is-number", f"World of {size}: evaluate returned a {kind} that holds the right number.")


def check_shares(grade: Grade, evaluations: list[Evaluation], values: list[list[dict[str, Any]]]) -> None:
    """Check that no rank does all of the work."""
    counts = [sum(map(len, rank[0]["batches"])) for rank in values]
    if max(counts) == evaluations[0]["num_samples"]:
        text = f"World of {len(values)}: rank {counts.index(max(counts))} evaluated all {max(counts)} samples"
        grade.reject("one-rank-does-all", f"{text}, and the other ranks none. The number is right.")


def check_loss(grade: Grade, size: int, asked: Evaluation, found: list[dict[str, Any]], unwaited: int) -> None:
    """Check that every rank returns the mean over all tokens."""
    samples = make_samples(asked["seed"], asked["num_samples"])
    expected = mean(samples)
    losses = [each["loss"] for each in found]
    if all(math.isclose(loss, expected, rel_tol=1e-5) for loss in losses):
        return
    digits = digits_that_differ(losses, expected)
    shown = ", ".join(f"{loss:.{digits}f}" for loss in losses)
    told = f"{count(asked['num_samples'], 'sample')}, world of {size}:"
    observed = f"{told} one process returns {expected:.{digits}f}, but the ranks return {shown}."
    if unwaited:
        text = f"{observed} {count(unwaited, 'collective was', 'collectives were')} started and never waited for."
        grade.reject("not-waited", text)
    if any(math.isnan(loss) or math.isinf(loss) for loss in losses):
        empty = sum(not each["batches"] for each in found)
        grade.reject("empty-rank" if empty else "unknown", f"{observed} {count(empty, 'rank')} had no sample.")
    shares = [[samples[i] for batch in each["batches"] for i in batch] for each in found]
    grade.reject(explain(size, losses, samples, shares, [each["batches"] for each in found]), observed)


def explain(
    size: int,
    losses: list[float],
    samples: list[torch.Tensor],
    shares: list[list[torch.Tensor]],
    batches: list[list[list[int]]],
) -> str:
    """Return the misconception that gives exactly these losses."""
    own = [mean(share) if share else 0.0 for share in shares]
    sums = [float(sum(each.double().sum() for each in share)) for share in shares]
    tokens = [max(1, sum(map(len, share))) for share in shares]
    of_batches = [mean_of_batches(samples, each) for each in batches]
    all_batches = [mean([samples[i] for i in batch]) for each in batches for batch in each if batch]
    if near(losses, [sum(own) / size] * size) or near(losses, [sum(own) / max(1, sum(map(bool, shares)))] * size):
        return "mean-of-means"
    if near(losses, [sum(all_batches) / len(all_batches)] * size) or near(losses, [sum(of_batches) / size] * size):
        return "mean-of-batches"
    if near(losses, [sum(mean([each]) for each in samples) / len(samples)] * size):
        return "mean-of-batches"
    if near(losses, [sum(sums) / len(samples)] * size):
        return "per-sample"
    if near(losses, [sum(sums) / count for count in tokens]) or near(losses, [each / sum(tokens) for each in sums]):
        return "half-reduced"
    rank_0 = near(losses[:1], [mean(samples)]) or near(losses, [own[0]] * size)
    return "own-share" if rank_0 or near(losses, own) else "unknown"


def digits_that_differ(losses: list[float], expected: float) -> int:
    """Return the number of decimals, at least 4, that distinguishes each wrong loss from the expected one."""
    wrong = [loss for loss in losses if not math.isclose(loss, expected, rel_tol=1e-5)]
    enough = (n for n in range(4, 12) if all(f"{loss:.{n}f}" != f"{expected:.{n}f}" for loss in wrong))
    return next(enough, 12)


def mean_of_batches(samples: list[torch.Tensor], batches: list[list[int]]) -> float:
    """Compute one rank's mean of batch means, or 0 if it has no sample."""
    return sum(mean([samples[i] for i in batch]) for batch in batches) / max(1, len(batches))


def mean(samples: list[torch.Tensor]) -> float:
    """Compute the mean loss over all tokens of some samples."""
    return float(torch.cat(samples).double().mean())


def near(found: list[float], expected: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(found, expected, strict=True))
