"""Compare with the clipped mean of all ranks' gradients, from torch's function in one process."""

import math
import random

import torch
from ranks import gradients

from frog.learn.grader.grade import Grade


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    two, three = draw_cases(draw, grade.seed, 2), draw_cases(draw, grade.seed + 50, 3)
    fixed = {"fixed": [[3.0, 0.0], [0.0, 4.0]], "max_norm": 1.0}
    found = []
    for size, cases in ((2, [*two, fixed]), (3, three)):
        world = grade.world(size, {"cases": cases})
        found = [[rank[n] for rank in world.values] for n in range(len(cases))]
        judge(grade, cases, found)
        if size == 2:
            grade.predicted("norm", found[-1][0]["gradients"][0].norm().item())
    bad = two[1]
    right, before = combine(bad)["right"][1], combine(bad)["clips-before-reducing"][1]
    own = torch.cat([g.flatten() for g in gradients(bad, 1)])
    for words, way in (("after the reduction", right), ("before", before)):
        angle = torch.nn.functional.cosine_similarity(way, own, dim=0).item()
        grade.measured(f"cosine of the step and the bad batch's gradient, clipped {words}", f"{angle:.3f}")


def draw_cases(draw, seed, size):
    """Draw quiet steps, one with a bad batch, and some with parts of different norms, above and below the limit."""
    parameters = [([draw.randint(2, 6), 3], 1.0), ([draw.randint(2, 9)], 0.05), ([4], 3.0)]
    plain, bad = [1.0] * size, [1.0] * size
    bad[1] = 50.0
    opposed = [1.0, -1.1, 0.4][:size]
    cases = [(plain, 1.0), (bad, 1.0), (plain, 1e3), (opposed, 0.5), ([0.01] * size, 0.7)]
    return [
        {"seed": seed + n, "parameters": parameters, "factors": factors, "max_norm": most}
        for n, (factors, most) in enumerate(cases)
    ]


def flat(parts):
    return torch.cat([part.flatten() for part in parts])


def combine(case, size=2):
    """Return, for each misconception, the norm and gradient of all ranks, or a list with one entry per rank."""
    most = case["max_norm"]
    ranks = [gradients(case, rank) for rank in range(size)]
    own = [flat(parts) for parts in ranks]
    mean_parts = [torch.stack(parts).mean(0) for parts in zip(*ranks, strict=True)]
    mean = flat(mean_parts)
    norm = mean.norm()
    norms = [g.norm() for g in own]
    return {
        "right": (norm, mean * limit(norm, most)),
        "clips-before-reducing": (None, sum(g * limit(g.norm(), most) for g in own) / size),
        "own-norm": (None, [mean * limit(n, most) for n in norms]),
        "clips-each": (None, flat([part * limit(part.norm(), most) for part in mean_parts])),
        "always-scales": (None, mean * most / norm),
        "clips-values": (None, mean.clamp(-most, most)),
        "never-reduces": (None, [g * limit(n, most) for g, n in zip(own, norms, strict=True)]),
        "sum-is-average": (None, mean * size * limit(norm * size, most)),
        **{id: (other, mean * limit(other, most)) for id, other in other_norms(case, size).items()},
    }


def other_norms(case, size):
    """Return the wrong values that people take for the norm of the mean."""
    ranks = [gradients(case, rank) for rank in range(size)]
    mean_parts = [torch.stack(parts).mean(0) for parts in zip(*ranks, strict=True)]
    mean, norms = flat(mean_parts), torch.stack([flat(parts).norm() for parts in ranks])
    return {
        "sum-of-norms": sum(part.norm() for part in mean_parts),
        "mean-of-norms": norms.mean(),
        "mean-of-norms.2": norms.max(),
        "mean-of-norms.3": norms.square().sum().sqrt(),
        "mean-of-norms.4": norms.square().mean().sqrt(),
        "another-norm": mean.norm() ** 2,
        "another-norm.2": mean.abs().sum(),
        "another-norm.3": mean.abs().max(),
        "another-norm.4": mean.square().mean().sqrt(),
        "counted-again": mean.norm() * size**0.5,
        "sum-for-mean": mean.norm() * size,
    }


def limit(norm, most):
    return min(1.0, float(most / norm))


def close(a, b):
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def fits(found, way):
    """True if the ranks' gradients are those that a method gives."""
    values = way[1] if isinstance(way[1], list) else [way[1]] * len(found)
    return all(close(flat(one["gradients"]), value) for one, value in zip(found, values, strict=True))


def judge(grade, cases, found):
    size = len(found[0])
    ways = [combine(case, size) for case in cases]
    wrong = [n for n in range(len(cases)) if not fits(found[n], ways[n]["right"])]
    if wrong:
        explain(grade, cases, found, ways, wrong)
    for n, case in enumerate(cases):
        for rank, one in enumerate(found[n]):
            if not torch.equal(flat(one["gradients"]), flat(found[n][0]["gradients"])):
                off = (flat(one["gradients"]) - flat(found[n][0]["gradients"])).abs().max()
                text = f"World of {size}: the gradients of ranks 0 and {rank} differ by up to {off:.1g}."
                grade.reject("unknown", f"{text} They must be equal, bit for bit.")
            judge_norm(grade, size, rank, case, one["norm"], ways[n]["right"])


def explain(grade, cases, found, ways, wrong):
    size, first = len(found[0]), wrong[0]
    seen = [flat(one["gradients"]) for one in found[first]]
    right = ways[first]["right"]
    lengths = " and ".join(f"{g.norm():.4g}" for g in (seen if not torch.equal(seen[0], seen[-1]) else seen[:1]))
    rank = max(range(size), key=lambda rank: (seen[rank] - right[1]).abs().max().item())
    angle = torch.nn.functional.cosine_similarity(seen[rank], right[1], dim=0).item()
    says = (
        f"World of {size}, max_norm {cases[first]['max_norm']:g}, norm of the mean {right[0]:.4g}: the gradient is "
        f"{lengths} long, expected {right[1].norm():.4g} (rank {rank}: cosine of the two {angle:.3f}, "
        f"largest difference {(seen[rank] - right[1]).abs().max():.1g})."
    )
    for id in ways[0]:
        if all(fits(ranks, way[id]) for ranks, way in zip(found, ways, strict=True)):
            grade.reject(id.split(".")[0], says)
    grade.reject("unknown", says)


def judge_norm(grade, size, rank, case, norm, right):
    before, after = right[0].item(), right[1].norm().item()
    if norm is not None and math.isclose(norm, before, rel_tol=1e-4):
        return
    says = f"World of {size}: the gradients are right, but rank {rank} returned {norm}; the norm was {before:.4g}"
    if norm is None:
        grade.reject("returns-nothing", f"{says}.")
    if math.isclose(norm, after, rel_tol=1e-4):
        grade.reject("norm-after", f"{says} before it was limited to {case['max_norm']:g}.")
    if math.isclose(norm, flat(gradients(case, rank)).norm().item(), rel_tol=1e-4):
        grade.reject("own-norm", f"{says}. Yours is the norm of the rank's own gradient.")
    for id, other in other_norms(case, size).items():
        if math.isclose(norm, other.item(), rel_tol=1e-4):
            grade.reject(id.split(".")[0], f"{says}.")
    grade.reject("unknown", f"{says}.")
