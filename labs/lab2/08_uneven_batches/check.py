"""Compare the weights after the epoch with one process that has all samples, and with each misconception."""

import random

import torch
from ranks import RATE, batches, loss_of, make_model

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    big = draw.randint(4, 6)
    worlds = {
        2: [[[big, big, 2], [big, big]], [[big, 1], [big, big]], [[3, 3], [3, 3]], [[], [2, 3]], [[200], [150]]],
        3: [[[big], [big, big, 1], [big, 2]], [[big, big], [], [big, 3, 3, 1]]],
    }
    for size, shapes in worlds.items():
        cases = [{"seed": grade.seed + n, "sizes": sizes} for n, sizes in enumerate(shapes)]
        world = grade.world(size, {"cases": cases})
        check_cases(grade, cases, [[rank[n] for rank in world.values] for n in range(len(cases))])
        if size == 2:
            right, means = simulate(cases[1], of_all_samples)[-1], simulate(cases[1], mean_of_means)[-1]
            off = (right - means).abs().max().item()
            grade.measured(
                f"batches of {cases[1]['sizes']}: weights if every rank counted the same", f"off by {off:.1e}"
            )
    grade.predicted("weight", 1.0)


def of_all_samples(parts, size):
    return sum(g * n for g, n in parts) / sum(n for _, n in parts)


def mean_of_means(parts, size):
    return sum(g for g, _ in parts) / len(parts)


def absent_counts(parts, size):
    return sum(g for g, _ in parts) / size


def sum_of_means(parts, size):
    return sum(g for g, _ in parts)


def divided_twice(parts, size):
    return of_all_samples(parts, size) / size


def means_not_weighted(parts, size):
    return sum(g for g, _ in parts) / sum(n for _, n in parts)


def simulate(case, combine, repeat=False, steps=None):
    """Return the weights after each step. `combine` turns the ranks' (gradient, samples) into one gradient."""
    model = make_model(case)
    data = [batches(case, rank) for rank in range(len(case["sizes"]))]
    weights = [flat(model)]
    for step in range(max(map(len, data)) if steps is None else steps):
        parts = []
        for own in data:
            if step < len(own) or (repeat and own):
                batch = own[min(step, len(own) - 1)]
                model.zero_grad()
                loss_of(model, batch).backward()
                parts.append((torch.cat([p.grad.flatten() for p in model.parameters()]), len(batch)))
        gradient = combine(parts, len(data))
        torch.nn.utils.vector_to_parameters(weights[-1] - RATE * gradient, model.parameters())
        weights.append(flat(model))
    return weights


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def by_belief(case):
    """Yield (id, weights after the epoch) for each misconception."""
    fewest = min(len(sizes) for sizes in case["sizes"])
    first = max(sizes[0] for sizes in case["sizes"] if sizes)
    largest = max(size for sizes in case["sizes"] for size in sizes)
    yield "mean-of-means", simulate(case, mean_of_means)[-1]
    yield "absent-counts", simulate(case, absent_counts)[-1]
    yield "absent-counts", simulate(case, lambda parts, size: of_all_samples(parts, size) * len(parts) / size)[-1]
    yield "means-not-weighted", simulate(case, means_not_weighted)[-1]
    yield "divided-by-ranks", simulate(case, lambda parts, size: sum(g * n for g, n in parts) / size)[-1]
    yield "divided-by-ranks", simulate(case, lambda parts, size: sum(g * n for g, n in parts))[-1]
    yield "sum-of-means", simulate(case, sum_of_means)[-1]
    yield "divided-twice", simulate(case, divided_twice)[-1]
    for nominal in (first, largest):
        for present in (True, False):
            yield "nominal-size", simulate(case, divided_by(nominal, present))[-1]
    for combine in (of_all_samples, mean_of_means):
        yield "drops-the-rest", simulate(case, combine, steps=fewest)[-1]
        yield "repeats-a-batch", simulate(case, combine, repeat=True)[-1]


def divided_by(nominal, present):
    """Combine as the sum over the samples, divided by the requested batch size times the number of ranks."""
    return lambda parts, size: sum(g * n for g, n in parts) / (nominal * (len(parts) if present else size))


def check_cases(grade, cases, found):
    """Reject with the misconception that explains every case."""
    right = [simulate(case, of_all_samples) for case in cases]
    wrong = [n for n, ranks in enumerate(found) if any(not close(value["weights"], right[n][-1]) for value in ranks)]
    if wrong:
        explain(grade, cases, found, right, wrong)
    check_rest(grade, cases, found, right)


def explain(grade, cases, found, right, wrong):
    first = wrong[0]
    setting = f"Batches of {' and '.join(map(str, cases[first]['sizes']))} samples"
    num_steps = len(right[first]) - 1
    lost = [rank for rank, value in enumerate(found[first]) if not value["weights"].isfinite().all()]
    if lost:
        says = f"{setting}: only {num_steps} steps have samples. After the epoch"
        says = f"{says} {len(lost)} of {len(found[first])} ranks have nan in their weights."
        grade.reject("step-of-nobody", says)
    off = [(value["weights"] - right[first][-1]).abs().max().item() for value in found[first]]
    for rank, value in enumerate(found[first]):
        own = len(cases[first]["sizes"][rank])
        if min(off) < 1e-5 < off[rank] and close(value["weights"], right[first][own]):
            grade.reject(
                "absent-does-not-step",
                f"{setting}: rank {rank} has the weights of step {own}, but the others have those of step {num_steps}: "
                f"{off[rank]:.1e} apart.",
            )
    if any(not close(value["weights"], found[first][0]["weights"]) for value in found[first]):
        check_equal(grade, setting, found[first], "ranks-apart")
    says = (
        f"{setting}: after the epoch the weights differ by {max(off):.1e} from those of one process with all samples."
    )
    beliefs = [list(by_belief(case)) for case in cases]
    for n, (id, _) in enumerate(beliefs[0]):
        if all(close(v["weights"], belief[n][1]) for ranks, belief in zip(found, beliefs, strict=True) for v in ranks):
            grade.reject(id, says)
    grade.reject("unknown", says)


def check_rest(grade, cases, found, right):
    for case, ranks, weights in zip(cases, found, right, strict=True):
        setting = f"Batches of {' and '.join(map(str, case['sizes']))} samples"
        check_equal(grade, setting, ranks, "nearly-equal")
        for rank, value in enumerate(ranks):
            check_steps(grade, setting, rank, value["steps"], len(weights) - 1, list(map(len, case["sizes"])))


def check_equal(grade, setting, ranks, id):
    """Check that the weights are equal on all ranks, bit for bit."""
    for rank, value in enumerate(ranks):
        if not torch.equal(value["weights"], ranks[0]["weights"]):
            off = (value["weights"] - ranks[0]["weights"]).abs().max().item()
            grade.reject(id, f"{setting}: the weights of rank {rank} differ from rank 0's by {off:.1e}.")


def check_steps(grade, setting, rank, says, expected, batches):
    """Check the number of steps that each rank returns, once the weights are right."""
    if says == expected:
        return
    seen = (
        f"{setting}: the weights are right. Rank {rank} returned {says}; all ranks took {expected} steps together, and "
    )
    seen += f"rank {rank} had a batch in {batches[rank]} of them."
    ways = {batches[rank]: "own-batches-counted", sum(batches): "batches-added-up", expected + 1: "turns-counted"}
    grade.reject(ways.get(says, "unknown"), seen)
