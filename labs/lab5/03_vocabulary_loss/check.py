"""Compare losses and gradients with torch's cross_entropy of the whole logits."""

import itertools
import math
import random
from typing import NoReturn

import torch
from ranks import IGNORED, MARK, bounds, make_logits
from torch.nn.functional import cross_entropy

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts


def check(grade: Grade) -> None:
    draw, seed = random.Random(grade.seed), grade.seed % 1_000_000
    run_world(grade, 2, draw_cases(draw, seed, 2))
    long = {"cuts": [0, 333, 667, 1001], "positions": 256, "shifts": [0.0] * 3, "seed": seed + 90, "weight": 1.0}
    long |= {"labels": [draw.randrange(1001) for _ in range(256)]}
    world, gap = run_world(grade, 3, [*draw_cases(draw, seed + 50, 3), long])
    passed = judge_bytes(grade, world, long)
    grade.measured("world of 3, 256 positions, vocabulary of 1,001: bytes that a rank passes on", f"{passed:,}")
    grade.measured("the same: bytes of all logits", f"{4 * 256 * 1001:,}")
    grade.measured("largest difference in a gradient", f"{gap:.1e}")
    grade.predicted("bytes", passed)


def draw_cases(draw, seed, size):
    """Draw uneven parts of a vocabulary; labels at their borders; large, small and ordinary logits."""
    usual = {"shifts": [0.0] * size, "weight": draw.choice([0.6, 1.7]), "ignored": 2, "one_sided": False}
    shifted = [float(3 * rank) for rank in draw.sample(range(size), size)]
    cases = [
        usual,
        usual | {"shifts": shifted},
        usual | {"one_sided": True, "ignored": 0},
        usual | {"shifts": [150.0 - shift for shift in shifted]},
        usual | {"shifts": [-150.0 - shift for shift in shifted]},
    ]
    return [draw_case(draw, seed + 7 * n, size, case) for n, case in enumerate(cases)]


def draw_case(draw, seed, size, case):
    lengths = draw.sample([3, 4, 5, 7, 8, 10], size)
    cuts = [sum(lengths[:rank]) for rank in range(size + 1)]
    if case["one_sided"]:
        rank = draw.randrange(size)
        labels = [draw.randrange(cuts[rank], cuts[rank + 1]) for _ in range(7)]
    else:
        labels = [one for start, end in itertools.pairwise(cuts) for one in (start, end - 1)]
        labels += [draw.randrange(cuts[-1]) for _ in range(4)] + [IGNORED] * case["ignored"]
    draw.shuffle(labels)
    return case | {"seed": seed, "cuts": cuts, "labels": labels, "positions": len(labels)}


def oracle(case):
    logits_NV = make_logits(case).requires_grad_()
    loss = cross_entropy(logits_NV, torch.tensor(case["labels"]), ignore_index=IGNORED)
    (loss * case["weight"]).backward()
    return loss.item(), [logits_NV.grad[:, start:end] for start, end in bounds(case)]


def run_world(grade, size, cases):
    world = grade.world(size, {"cases": cases}, seconds=3.0)
    largest = 0.0
    for n, case in enumerate(cases):
        found = [rank[n] for rank in world.values]
        low, high = min(case["shifts"]) - 6, max(case["shifts"]) + 6
        where = f"World of {size}, logits from about {low:g} to {high:g}"
        judge_kinds(grade, world, where, case, found)
        loss, gradients = oracle(case)
        losses = [number(one["loss"]) for one in found]
        if not all(near(one, loss) for one in losses):
            explain_loss(grade, where, case, losses, loss)
        if not all(close(one["gradient"], right) for one, right in zip(found, gradients, strict=True)):
            explain_gradient(grade, where, case, [one["gradient"] for one in found], gradients)
        pairs = zip(found, gradients, strict=True)
        largest = max([largest, *((one["gradient"] - right).abs().max().item() for one, right in pairs)])
    return world, largest


def judge_kinds(grade, world, where, case, found):
    for rank, one in enumerate(found):
        if not isinstance(one["loss"], torch.Tensor) or one["loss"].numel() != 1:
            shape = list(one["loss"].shape) if isinstance(one["loss"], torch.Tensor) else type(one["loss"]).__name__
            grade.reject("unknown", f"{where}, rank {rank}: you returned {shape}, not one number.")
        if one["labels"].tolist() != case["labels"]:
            grade.reject("unknown", f"{where}, rank {rank}: your code changed the caller's labels.")
        started = [call for call in world.calls[rank] if call.is_async]
        waited = sum(call.waited for call in started)
        if waited < len(started):
            text = f"{where}, rank {rank}: you started {count(len(started), 'operation')} and waited for {waited}."
            grade.reject("not-waited", text)


def number(loss):
    return loss.item()


def near(found, expected):
    return math.isclose(found, expected, rel_tol=2e-4, abs_tol=2e-4)


def close(found, expected):
    if found is None or found.shape != expected.shape:
        return False
    return torch.allclose(found, expected, rtol=1e-3, atol=2e-5, equal_nan=True)


# ---- losses ----------------------------------------------------------------------------------------------------------


class Numbers:
    """The numbers of a case from which people compute a loss; those in lists are one for each rank."""

    def __init__(self, case):
        self.logits, self.labels = make_logits(case), torch.tensor(case["labels"])
        self.counts = self.labels != IGNORED
        self.bounds, self.size = bounds(case), len(case["cuts"]) - 1
        self.parts = [self.logits[:, start:end] for start, end in self.bounds]
        self.own_max = [part.amax(1) for part in self.parts]
        self.max = self.logits.amax(1)
        self.log_sum = self.logits.logsumexp(1) - self.max
        self.own_sums = [(part - self.max.unsqueeze(1)).exp().sum(1) for part in self.parts]
        self.own_label = [self.at(rank, start, "none") for rank, (start, _) in enumerate(self.bounds)]
        self.label = sum(self.own_label)

    def at(self, rank, first, way):
        """Return a rank's logit at each label. `way`: which one it takes if it does not have the label."""
        part = self.parts[rank]
        places = self.labels - first
        here = (places >= 0) & (places < part.shape[1])
        stand_in = places.clamp(0, part.shape[1] - 1) if way == "clamped" else places.remainder(part.shape[1])
        stand_in = torch.zeros_like(places) if way in ("first", "none") else stand_in
        found = part.gather(1, torch.where(here, places, stand_in).unsqueeze(1)).squeeze(1)
        return torch.where(here, found, 0.0) if way == "none" else found

    def mean(self, loss):
        return loss[self.counts].mean().item()


def loss_ways(case):
    """Return wrong losses by misconception: a list with one for each rank."""
    it = Numbers(case)
    size, right = it.size, it.log_sum + it.max - it.label
    each, ranks = lambda one: [it.mean(one)] * size, range(size)
    sums = sum((part - own.unsqueeze(1)).exp().sum(1) for part, own in zip(it.parts, it.own_max, strict=True))
    own_sum = [part.logsumexp(1) for part in it.parts]
    ways = {
        "own-maximum": [it.mean(sums.log() + own - it.label) for own in it.own_max],
        "own-maximum.2": each(sums.log() + it.max - it.label),
        "own-exponentials": [it.mean(own.log() + it.max - it.label) for own in it.own_sums],
        "sums-logarithms": each(sum(own.log() for own in it.own_sums) + it.max - it.label),
        "sums-logarithms.2": each(sum(own_sum) - it.label),
        "label-not-summed": [it.mean(it.log_sum + it.max - own) for own in it.own_label],
        "maximum-forgotten": each(it.log_sum - it.label),
        "maximum-forgotten.2": each(it.log_sum + 2 * it.max - it.label),
        "maximum-forgotten.3": each(it.log_sum + (1 - size) * it.max - it.label + size * it.max),
        "mean-of-parts": [one / size for one in each(right)],
        "own-softmax": [own_loss(it, rank) for rank in ranks],
        "own-softmax.2": [sum(own_loss(it, rank) for rank in ranks) / size] * size,
        "own-softmax.3": [sum(own_loss(it, rank) for rank in ranks)] * size,
        "ignored-counted": [torch.where(it.counts, right, it.log_sum + it.max).mean().item()] * size,
        "divided-by-all": [torch.where(it.counts, right, 0.0).mean().item()] * size,
        "summed-over-positions": [right[it.counts].sum().item()] * size,
        "summed-over-positions.2": [torch.where(it.counts, right, it.log_sum + it.max).sum().item()] * size,
    }
    for way in ("clamped", "wrapped", "first"):
        label = sum(it.at(rank, start, way) for rank, (start, _) in enumerate(it.bounds))
        ways[f"label-not-masked.{way}"] = each(it.log_sum + it.max - label)
        label = sum(it.at(rank, rank * it.parts[rank].shape[1], way) for rank in ranks)
        ways[f"parts-are-equal.{way}"] = each(it.log_sum + it.max - label)
    for number, border in enumerate((0, -1)):
        label = it.label * ~torch.isin(it.labels, torch.tensor([range(*one)[border] for one in it.bounds]))
        ways[f"border-left-out.{number}"] = each(it.log_sum + it.max - label)
    label = sum(it.at(rank, rank * it.parts[rank].shape[1], "none") for rank in ranks)
    ways["parts-are-equal"] = each(it.log_sum + it.max - label)
    return ways


def own_loss(it, rank):
    """Return torch's loss of a rank's own part, for the labels in it."""
    start, end = it.bounds[rank]
    here = (it.labels >= start) & (it.labels < end)
    return cross_entropy(it.parts[rank], torch.where(here, it.labels - start, IGNORED)).item()


WORDS = {
    "own-maximum": "Each rank subtracted the largest logit of its own part, and the sum adds such exponentials.",
    "own-exponentials": "It has the exponentials of the rank's own part only.",
    "sums-logarithms": "It has the sum of the ranks' logarithms, and not the logarithm of their sum.",
    "label-not-summed": "Labels that are in another rank's part have the logit 0.",
    "label-not-masked": "For each label, every rank added a logit; one of them has the label.",
    "border-left-out": "Labels at one border of each rank's part have the logit 0.",
    "parts-are-equal": "It looks for the labels as if all ranks had as many tokens as this one.",
    "maximum-forgotten": "The largest logit was subtracted from the exponents, but is not in the result exactly once.",
    "mean-of-parts": "It is the right one divided by the number of ranks.",
    "own-softmax": "It comes from the cross-entropy of single parts, as if the other tokens did not exist.",
    "ignored-counted": "It is the mean over all positions, with the logit 0 where the label is ignored.",
    "divided-by-all": "The sum over the positions that count is divided by the number of all positions.",
    "summed-over-positions": "It is the sum over the positions.",
}


def explain_loss(grade, where, case, found, right) -> NoReturn:
    size = len(found)
    rank = next(rank for rank, loss in enumerate(found) if not near(loss, right))
    texts = distinct_texts(found[rank], right)
    says = f"{where}, rank {rank}: the loss is {texts[0]}; torch's cross_entropy is {texts[1]}."
    if not math.isfinite(found[rank]):
        largest = max(start + 6 for start in case["shifts"])
        id = "overflows" if largest > 88 or max(case["shifts"]) < -80 else "unknown"
        grade.reject(id, f"{says} With logits between -10 and 20 it is right." if id == "overflows" else says)
    for id, losses in loss_ways(case).items():
        if all(near(a, b) for a, b in zip(found, losses, strict=True)) and len(losses) == size:
            id = id.split(".")[0]
            grade.reject(id, f"{says} {WORDS[id]}")
    if all(near(loss, found[0]) for loss in found):
        says += " All ranks have the same."
    grade.reject("unknown", says)


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradient_ways(case, right):
    """Return wrong gradients by misconception: a list with one for each rank, and what is to be said."""
    it, weight = Numbers(case), case["weight"]
    num = it.counts.sum()
    one_hot = torch.zeros_like(it.logits)
    one_hot[it.counts, it.labels[it.counts]] = 1.0
    cut = lambda whole: [whole[:, start:end] for start, end in it.bounds]  # noqa: E731
    softmax = it.logits.softmax(1)
    scale = weight / num * it.counts.unsqueeze(1)
    extra = []
    for part, own in zip(it.parts, cut(softmax), strict=True):
        is_largest = torch.nn.functional.one_hot(part.argmax(1), part.shape[1])
        extra.append((scale * is_largest, own.sum(1, keepdim=True)))
    rest = scale * (softmax - one_hot)
    elsewhere = [(own < it.max).unsqueeze(1) for own in it.own_max]
    with_extra = [one + at * (1 - own) for one, (at, own) in zip(right, extra, strict=True)]
    own_softmax = torch.cat([part.softmax(1) for part in it.parts], 1)
    return {
        "gradient-times-ranks": ([one * it.size for one in right], f"It is {it.size}.000 times the right one."),
        "gradient-divided": ([one / it.size for one in right], f"It is 1/{it.size} of the right one."),
        "upstream-ignored": (
            [one / weight for one in right],
            f"It is {1 / weight:.3f} times the right one: the loss was multiplied by {weight:g} before backward.",
        ),
        "sum-without-gradient": (cut(-scale * one_hot), "Only the logits of labels have one."),
        "label-without-gradient": (cut(scale * softmax), "The logits of labels have the same as if they were none."),
        "gradient-of-own-softmax": (
            cut(scale * (own_softmax - one_hot)),
            "It has the softmax over the rank's own part, which adds up to 1 on every rank.",
        ),
        "never-divided": (
            cut(scale * ((it.logits - it.logits.amax(1, keepdim=True)).exp() - one_hot)),
            "It has the exponentials that forward adds up, which the sum did not divide.",
        ),
        "ignored-counted": (
            cut(rest + (weight / num) * softmax * ~it.counts.unsqueeze(1)),
            "Ignored positions have one.",
        ),
        "maximum-with-gradient": (with_extra, "At the largest logit of each part it has something in addition."),
        "maximum-with-gradient.4": (
            [one.masked_fill(mask, math.nan) for one, mask in zip(with_extra, elsewhere, strict=True)],
            "It is nan where the largest logit of the position is on another rank.",
        ),
        "maximum-with-gradient.2": (
            [one - at * own for one, (at, own) in zip(right, extra, strict=True)],
            "At the largest logit of each part it has something in addition.",
        ),
        "maximum-with-gradient.3": (
            [one + at for one, (at, own) in zip(right, extra, strict=True)],
            "At the largest logit of each part it has something in addition.",
        ),
    }


def explain_gradient(grade, where, case, found, right) -> NoReturn:
    says = f"{where}: the loss is right, but the gradient of the logits is not."
    for id, (gradients, text) in gradient_ways(case, right).items():
        if all(close(a, b) for a, b in zip(found, gradients, strict=True)):
            grade.reject(id.split(".")[0], f"{says} {text}")
    rank = next(rank for rank, pair in enumerate(zip(found, right, strict=True)) if not close(*pair))
    grade.reject_different(found[rank], right[rank], f"{says} On rank {rank} it")


# ---- bytes -----------------------------------------------------------------------------------------------------------


def judge_bytes(grade, world, case):
    """Compare the bytes of the last case with three numbers for each position."""
    marks = [n for n, call in enumerate(world.calls[0]) if call.numel == MARK and "int8" in call.dtype]
    calls = world.calls[0][marks[-2] + 1 : marks[-1]]
    found, expected = sum(call.num_bytes for call in calls), 3 * 4 * case["positions"]
    says = (
        f"World of {world.size}, {case['positions']} positions, a vocabulary of {case['cuts'][-1]:,}: the numbers are "
        f"right. A rank passed {found:,} bytes to collectives; three numbers for each position have {expected:,}."
    )
    if found >= 1.95 * expected:
        smallest = 4 * case["positions"] * case["cuts"][1]
        if max(call.num_bytes for call in calls) >= smallest:
            grade.reject("gathers-logits", f"{says} The logits of one rank have {smallest:,}.")
        grade.reject("unknown", says)
    if found > 1.1 * expected:
        grade.note(says)
    return found
