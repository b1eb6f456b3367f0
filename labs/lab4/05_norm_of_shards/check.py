"""Compare with torch's clip_grad_norm_ on the whole model, in one process."""

import math
import random
from typing import NoReturn

import torch
from ranks import COPIES, bounds, gradients, local
from torch import nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import distinct_texts

FIXED = {"layer.weight": [3.0, 4.0], "norm.weight": [12.0]}
"""Ranks 0 and 1 own one number each, rank 2 none; each rank has the copy."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    fixed = {"fixed": FIXED, "shares": [1, 1, 0], "empty_has_grad": True, "max_norm": 6.5}
    for size in (2, 3):
        cases = draw_cases(draw, grade.seed + 50 * size, size)
        cases += [fixed] if size == 3 else []
        world = grade.world(size, {"cases": cases})
        found = [[rank[n] for rank in world.values] for n in range(len(cases))]
        judge(grade, cases, found)
        check_sent(grade, world, cases)
        if size == 3:
            grade.predicted("norm", found[-1][2]["norm"])
    report(grade, cases[0])


def draw_cases(draw, seed, size):
    """Draw uneven shards, a rank that owns nothing, a long shard, dominant copies, no copies, and quiet steps."""
    width, vocabulary = draw.randint(11, 17), draw.randint(53, 71)
    shapes = {
        "embed.weight": [vocabulary, width],
        "frozen.weight": [width, 3],
        "layer.weight": [width + 2, width],
        "layer.bias": [2],
        "norm.weight": [width],
        "norm.bias": [width],
        "idle.weight": [5, width],
        "idle.bias": [5],
    }
    only_shards = {name: shape for name, shape in shapes.items() if name not in COPIES}
    even, plain = [1] * size, [1.0] * size
    idle, late = draw.randrange(size), draw.randrange(size)
    nothing = [0 if rank == idle else draw.randint(1, 3) for rank in range(size)]
    uneven = draw.sample(range(1, 9), size)
    bad = [40.0 if rank == late else 1.0 for rank in range(size)]
    usual = {"shapes": shapes, "shares": even, "by_rank": plain, "empty_has_grad": True, "max_norm": 1.0, "scale": {}}
    norms = {"norm.weight": 1.7, "norm.bias": 0.4}
    cases = [
        usual | {"scale": norms},
        usual | {"shares": nothing, "empty_has_grad": False, "scale": norms},
        usual | {"shares": nothing, "empty_has_grad": False, "shapes": only_shards},
        usual | {"shares": uneven, "by_rank": bad},
        usual | {"max_norm": 1e3, "scale": norms},
        usual | {"shares": uneven, "scale": norms | {"embed.weight": 0.01, "layer.weight": 0.01, "layer.bias": 0.01}},
    ]
    return [case | {"seed": seed + number} for number, case in enumerate(cases)]


def oracle(case):
    """Return the norm and the clipped gradients of the whole model."""
    model = nn.ParameterDict()
    for name, gradient in gradients(case).items():
        model[name.replace(".", "_")] = parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"]).item()
    return norm, {name: model[name.replace(".", "_")].grad for name in gradients(case)}


def cut(case, whole, rank):
    return {name: grad if name in COPIES else grad[bounds(case, name, rank)] for name, grad in whole.items()}


def limit(norm, most):
    return min(1.0, most / norm) if norm else 1.0


def length(grads):
    return math.sqrt(sum(grad.double().square().sum().item() for grad in grads))


class Parts:
    """The lengths from which people compute the norm: of each rank's shards, of the copies, of the tied weight."""

    def __init__(self, case, size):
        self.size, self.most = size, case["max_norm"]
        self.ranks = [local(case, rank) for rank in range(size)]
        self.own = [length([g for name, g in grads.items() if name not in COPIES]) for grads in self.ranks]
        self.copies = length([g for name, g in self.ranks[0].items() if name in COPIES])
        self.shards = math.hypot(*self.own)
        self.local = [math.hypot(own, self.copies) for own in self.own]
        self.tied = length([grads["embed.weight"] for grads in self.ranks]) if "fixed" not in case else 0.0
        self.norm = math.hypot(self.shards, self.copies)

    def norms(self):
        """Return the norm under each misconception: one for all ranks, or one for each."""
        size, copies = self.size, self.copies
        lengths = [
            sum(length([g]) for name, g in grads.items() if name not in COPIES and g.numel()) for grads in self.ranks
        ]
        each_copy = sum(length([g]) for name, g in self.ranks[0].items() if name in COPIES)
        return {
            "copies-counted-again": math.hypot(self.shards, math.sqrt(size) * copies),
            "copies-forgotten": self.shards,
            "own-norm": self.local,
            "own-norm.2": self.own,
            "sum-of-norms": sum(self.local),
            "sum-of-norms.2": math.hypot(sum(self.own), copies),
            "sum-of-norms.3": sum(self.own) + copies,
            "sum-of-norms.4": self.shards + copies,
            "sum-of-norms.5": sum(math.hypot(own, copies / math.sqrt(size)) for own in self.own),
            "sum-of-norms.6": sum(lengths) + each_copy,
            "sum-of-norms.7": math.hypot(sum(lengths), copies),
            "sum-of-norms.8": sum(lengths) + copies,
            "sum-of-norms.9": sum(lengths) + size * each_copy,
            "sum-of-norms.10": math.hypot(*lengths, each_copy),
            "sum-of-norms.11": math.hypot(*(own + each_copy for own in lengths)),
            "sum-of-norms.12": self.shards + each_copy,
            "largest-norm": max(self.local),
            "mean-of-norms": sum(self.local) / size,
            "mean-of-norms.2": math.hypot(self.shards / math.sqrt(size), copies),
            "mean-of-norms.3": math.hypot(sum(self.own) / size, copies),
            "no-root": self.norm**2,
            "tied-twice": math.hypot(self.norm, self.tied),
        }

    def ways(self):
        """Return the gradients, by rank, under each misconception."""
        right, once = self.limited(self.norm), limit(self.norm, self.most)
        found = {id: self.limited(norm) for id, norm in self.norms().items()}
        found |= {
            "copies-not-clipped": self.limited(self.norm, 0.0),
            "copies-not-clipped.2": self.limited(self.shards, 0.0),
            "clipped-apart": self.limited(self.shards, self.copies),
            "clips-each": [
                {name: g * limit(length([g]), self.most) for name, g in grads.items()} for grads in self.ranks
            ],
            "tied-twice.2": twice(right, once),
            "tied-twice.3": twice(found["tied-twice"], limit(math.hypot(self.norm, self.tied), self.most)),
            "result-dropped": self.ranks,
            "always-scales": [{name: g * self.most / self.norm for name, g in grads.items()} for grads in self.ranks],
        }
        return found

    def limited(self, norm, of_copies=None):
        by_rank = norm if isinstance(norm, list) else [norm] * self.size
        return [
            {
                name: g * limit(of_copies if of_copies is not None and name in COPIES else one, self.most)
                for name, g in grads.items()
            }
            for grads, one in zip(self.ranks, by_rank, strict=True)
        ]


def twice(ranks, factor):
    return [
        {name: grad * factor if name == "embed.weight" else grad for name, grad in grads.items()} for grads in ranks
    ]


def close(found, expected):
    """True if a rank's gradients are these; an empty one may be None."""
    if found is None:
        return not expected.numel()
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-7)


def fits(found, way):
    """True if the gradients of all ranks are those of a way."""
    return all(
        close(one["gradients"][name], grad)
        for one, grads in zip(found, way, strict=True)
        for name, grad in grads.items()
    )


def judge(grade, cases, found):
    size = len(found[0])
    right = [[cut(case, oracle(case)[1], rank) for rank in range(size)] for case in cases]
    wrong = [n for n in range(len(cases)) if not fits(found[n], right[n])]
    if wrong:
        explain(grade, cases, found, right, wrong[0])
    for n, case in enumerate(cases):
        for rank, one in enumerate(found[n]):
            judge_norm(grade, size, rank, case, one["norm"])
            for name in COPIES & set(gradients(case)):
                first = found[n][0]["gradients"][name]
                if not torch.equal(one["gradients"][name], first):
                    text = f"World of {size}: every rank has a copy of {name}, but the gradient on rank {rank} differs "
                    grade.reject(
                        "unknown", f"{text}from rank 0's by {(one['gradients'][name] - first).abs().max():.1g}."
                    )


def explain(grade, cases, found, right, first) -> NoReturn:
    """Reject gradients that are not those of the whole model, clipped."""
    parts = [Parts(case, len(found[0])) for case in cases]
    one = parts[first]
    rank, name = farthest(found[first], right[first])
    seen, expected = found[first][rank]["gradients"][name], right[first][rank][name]
    says = (
        f"World of {one.size}, max_norm {one.most:g}: the whole gradient has the norm {one.norm:.4g} "
        f"(shards of the ranks {', '.join(f'{own:.3g}' for own in one.own)}; copies {one.copies:.3g})"
    )
    if seen is None or seen.shape != expected.shape:
        shape = "None" if seen is None else f"of shape {list(seen.shape)}"
        grade.reject("unknown", f"{says}. Afterwards the gradient of {name} on rank {rank} is {shape}.")
    factor, own = (length([g]) / length([one.ranks[rank][name]]) for g in (expected, seen))
    a, b = distinct_texts(own, factor, 4)
    says += f". You multiplied the gradient of {name} on rank {rank} by {a}, expected {b}."
    ways = [part.ways() for part in parts]
    unchanged = all(fits(ranks, way["result-dropped"]) for ranks, way in zip(found, ways, strict=True))
    returned = found[first][rank]["norm"]
    if unchanged and (returned is None or not math.isclose(returned, one.norm, rel_tol=1e-4)):
        grade.reject("unknown", f"{says} No gradient changed, and rank {rank} returned {returned}.")
    for id in ways[0]:
        if all(fits(ranks, way[id]) for ranks, way in zip(found, ways, strict=True)):
            grade.reject(id.split(".")[0], says)
    grade.reject("unknown", says)


def farthest(found, right):
    """Return the rank and the name of the gradient that is farthest from the expected one."""

    def distance(place):
        rank, name = place
        seen, expected = found[rank]["gradients"][name], right[rank][name]
        if not expected.numel():
            return -1.0
        if seen is None or seen.shape != expected.shape:
            return math.inf
        return length([seen - expected]) / length([expected])

    return max(((rank, name) for rank, grads in enumerate(right) for name in grads), key=distance)


def judge_norm(grade, size, rank, case, norm):
    before, whole = oracle(case)
    if norm is not None and math.isclose(norm, before, rel_tol=1e-4):
        return
    parts = Parts(case, size)
    says = f"World of {size}: the gradients are right, but rank {rank} returned {norm}; the norm was {before:.4g}"
    if norm is None:
        grade.reject("returns-nothing", f"{says}.")
    if math.isclose(norm, length(whole.values()), rel_tol=1e-4):
        grade.reject("norm-after", f"{says} before it was limited to {case['max_norm']:g}.")
    for id, other in parts.norms().items():
        if math.isclose(norm, other[rank] if isinstance(other, list) else other, rel_tol=1e-4):
            grade.reject(id.split(".")[0], f"{says}.")
    grade.reject("unknown", f"{says}.")


def check_sent(grade, world, cases):
    """Reject a rank that sends gradients where one number is enough."""
    for rank, calls in enumerate(world.calls):
        sent = sum(call.num_bytes for call in calls)
        copies = [grad.numel() for case in cases for name, grad in local(case, rank).items() if name in COPIES]
        held = sum(4 * grad.numel() for case in cases for grad in local(case, rank).values())
        says = f"World of {world.size}: the norm is right. In {len(cases)} calls, rank {rank} passed {sent:,} bytes to "
        says += f"collectives; one float32 number a call is {4 * len(cases)} bytes in total."
        reduced = [call.numel for call in calls if call.op == "all_reduce" and call.numel > 1]
        if sorted(reduced) == sorted(numel for numel in copies if numel > 1):
            text = f"All but {sent - 4 * sum(reduced):,} bytes are gradients of copies, which are the mean already."
            grade.reject("copies-reduced-again", f"{says} {text}")
        if sent > 64 * len(cases):
            grade.reject("sends-gradients", f"{says} Its gradients have {held:,}.")
    sent = sum(call.num_bytes for call in world.calls[0]) / len(cases)
    if world.size == 3:
        grade.measured("bytes that rank 0 passes to collectives in a call", f"{sent:.3g}")


def report(grade, case):
    """Show how the mistake with the copies grows with the number of ranks."""
    parts = Parts(case, len(case["shares"]))
    grade.measured("norm of the gradient", f"{parts.norm:.3f} (copies {parts.copies:.3f})")
    for size in (3, 64):
        norm = math.hypot(parts.shards, math.sqrt(size) * parts.copies)
        share = f"the step is {parts.norm / norm:.2f} times as long"
        grade.measured(f"if {size} ranks each counted the copies", f"{norm:.3f}: {share}")
