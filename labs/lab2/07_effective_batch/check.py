"""Compare with a loop that splits the samples with torch's sampler and counts."""

import math
import random

from torch.utils.data import BatchSampler, DistributedSampler

from frog.learn.grader.grade import Grade

PREDICTED = {"num_samples": 50_000, "world_size": 64, "batch_per_rank": 8, "grad_accum": 4}
BASE = {"base_rate": 3e-4, "base_batch": 256}


def draw_plans(draw):
    plans = []
    for _ in range(12):
        world, batch, accum = draw.choice([2, 3, 4, 6]), draw.randint(2, 9), draw.choice([2, 3, 5])
        samples = world * batch * accum * draw.randint(3, 9) + draw.randint(1, world * batch * accum - 1)
        samples += samples % world == 0  # so that the shares need padding
        plans.append({"num_samples": samples, "world_size": world, "batch_per_rank": batch, "grad_accum": accum})
    plans += [
        {"num_samples": 3, "world_size": 4, "batch_per_rank": 2, "grad_accum": 1},
        {"num_samples": 96, "world_size": 1, "batch_per_rank": 8, "grad_accum": 1},
        {"num_samples": 320, "world_size": 4, "batch_per_rank": 8, "grad_accum": 1},
    ]
    return [plan | {"base_rate": draw.uniform(1e-4, 1e-2), "base_batch": draw.choice([32, 100, 256])} for plan in plans]


def draw_kept(draw):
    kept = [
        (32, 4, 8),
        (422, 2, 20),
        (32, 2, 8),
        (32, 1, 8),
        (32, 3, 8),
        (96, 2, 7),
        (26, 2, 12),
        (4, 8, 2),
        (64, 4, 100),
    ]
    for _ in range(8):
        world, share = draw.choice([1, 2, 3, 8]), draw.randint(5, 60)
        kept.append((world * share, world, draw.randint(1, 20)))
    return kept


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    plans, kept = [*draw_plans(draw), PREDICTED | BASE], draw_kept(draw)
    found = grade.call({"plans": plans, "kept": kept}).values[0]
    right = [count(plan) for plan in plans]
    for value in found["plans"]:
        if not isinstance(value, dict) or set(value) != set(right[0]):
            grade.reject("unknown", f"plan returned {value!r}, expected a dict of {', '.join(right[0])}.")
    for name in right[0]:
        check_figure(grade, name, plans, [value[name] for value in found["plans"]], [one[name] for one in right])
    check_swapped(grade, kept, found["kept"])
    for arguments, pair in zip(kept, found["kept"], strict=True):
        check_pair(grade, *arguments, pair)
    grade.predicted("steps", right[-1]["steps"])
    grade.predicted("learning-rate", right[-1]["learning_rate"])
    for world in (1, 2, 4, 64):
        one = count(PREDICTED | BASE | {"world_size": world})
        told = f"{one['steps']} steps of {one['effective_batch']} samples, rate {one['learning_rate']:.2g}"
        grade.measured(f"{world} ranks", told)


def count(plan):
    """Simulate one epoch on rank 0, step by step."""
    sampler = DistributedSampler(range(plan["num_samples"]), num_replicas=plan["world_size"], rank=0)
    steps, micro_batches, largest = 0, 0, 0
    for _ in BatchSampler(sampler, plan["batch_per_rank"], drop_last=False):
        micro_batches += 1
        if micro_batches == plan["grad_accum"]:
            steps, micro_batches = steps + 1, 0
    for _ in range(plan["world_size"] * plan["grad_accum"]):
        largest += plan["batch_per_rank"]
    return {
        "effective_batch": largest,
        "samples_per_rank": len(sampler),
        "steps": steps + (micro_batches > 0),
        "learning_rate": plan["base_rate"] * largest / plan["base_batch"],
    }


def ways_of(plan):
    """Return the result of each misconception."""
    num, world = plan["num_samples"], plan["world_size"]
    batch, accum = plan["batch_per_rank"], plan["grad_accum"]
    whole = world * batch * accum
    rate, base = plan["base_rate"], plan["base_batch"]
    return {
        "effective_batch": {
            "batch-of-one-rank": [batch, batch * accum],
            "accumulation-forgotten": [world * batch],
        },
        "samples_per_rank": {"share-rounded-down": [num // world], "epoch-of-one-rank": [num]},
        "steps": {
            "rest-dropped": [num // whole, num // world // batch // accum],
            "counts-micro-batches": [math.ceil(num / (world * batch)), num // (world * batch)],
            "epoch-of-one-rank": [math.ceil(num / (batch * accum)), num // (batch * accum)],
        },
        "learning_rate": {
            "rate-unchanged": [rate],
            "rate-by-world": [rate * world],
            "another-rule": [rate * math.sqrt(whole / base)],
            "accumulation-forgotten": [rate * world * batch / base],
            "batch-of-one-rank": [rate * batch / base, rate * batch * accum / base],
        },
    }


def check_figure(grade, name, plans, found, right):
    wrong = [n for n, value in enumerate(found) if not same(value, right[n])]
    if not wrong:
        return
    plan = plans[wrong[0]]
    says = (
        f"{numbered(plan['num_samples'], 'sample')}, {numbered(plan['world_size'], 'rank')}, {plan['batch_per_rank']} "
        f"samples per micro-batch, {numbered(plan['grad_accum'], 'micro-batch', 'es')} per step: {name} is "
        f"{found[wrong[0]]}, expected {right[wrong[0]]:.6g}."
    )
    ways = [ways_of(plan)[name] for plan in plans]
    for id, values in ways[0].items():
        for k in range(len(values)):
            if all(same(value, way[id][k]) for value, way in zip(found, ways, strict=True)):
                grade.reject(id, says)
    grade.reject("unknown", says)


def numbered(num, what, ending="s"):
    return f"{num} {what}{ending if num != 1 else ''}"


def same(found, expected):
    try:
        return math.isclose(float(found), expected, rel_tol=1e-6)
    except (TypeError, ValueError):
        return False


def fewest_of(effective, world, most):
    """Return the smallest accumulation for which each micro-batch fits, or None if no pair exists."""
    share, rest = divmod(effective, world)
    if rest:
        return None
    return next((n for n in range(1, share + 1) if share % n == 0 and share // n <= most), None)


def check_swapped(grade, kept, found):
    """Reject pairs that are right except for the order of their numbers."""
    asked = [one for one in kept if fewest_of(*one) is not None]
    pairs = [pair for one, pair in zip(kept, found, strict=True) if fewest_of(*one) is not None]
    right = [[one[0] // one[1] // fewest_of(*one), fewest_of(*one)] for one in asked]
    if pairs != right and [pair[::-1] if isinstance(pair, list) else pair for pair in pairs] == right:
        n = next(n for n in range(len(right)) if pairs[n] != right[n])
        text = f"keep_batch{asked[n]} returned {tuple(pairs[n])}, expected {tuple(right[n])}."
        grade.reject("pair-swapped", f"{text} It is (batch_per_rank, grad_accum), in this order.")


def check_pair(grade, effective, world, most, pair):
    asked = f"keep_batch({effective}, {world}, {most})"
    per_rank, rest = divmod(effective, world)
    if isinstance(pair, dict) and "error" in pair:
        if rest == 0:
            would_do = f"{numbered(per_rank, 'micro-batch', 'es')} of one sample would work."
            says = f"{asked} raised ValueError ({pair['error']}), but {would_do}"
            grade.reject("gives-up" if per_rank else "unknown", says)
        return
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(n, int) for n in pair):
        grade.reject("unknown", f"{asked} returned {pair}, expected two integers.")
    batch, accum = pair
    seen = f"{asked} returned {numbered(batch, 'sample')} per micro-batch and {numbered(accum, 'micro-batch', 'es')}"
    if batch * accum * world != effective or min(pair) < 1:
        grade.reject("another-batch", f"{seen}: an effective batch of {batch * accum * world}, not {effective}.")
    if batch > most:
        grade.reject("over-memory", f"{seen}: {numbered(batch, 'sample')} in memory at a time, but only {most} fit.")
    fewest = fewest_of(effective, world, most)
    if accum > fewest:
        grade.reject("too-many-micro-batches", f"{seen}; {fewest} would be enough.")
