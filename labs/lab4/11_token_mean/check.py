"""Compare gradients and loss with one process that has all tokens of the step in one batch."""

import math
import random
from typing import Any, NoReturn

import torch
from ranks import FEW, IGNORED, MARK, batches, make_model
from torch.nn.functional import cross_entropy

from frog.learn.grader.grade import Grade
from frog.learn.grader.live_bytes import LiveBytes
from frog.learn.grader.words import count, distinct_texts

LARGE, NUM_LARGE = (6, 16), 12
"""Sequences and tokens of a micro-batch in the step that measures memory, and the micro-batches of a rank."""


def draw_shapes(draw: random.Random, nums: list[int]) -> list[list[list[int]]]:
    """Draw each rank's micro-batches as (sequences, tokens in each, trained tokens in all), with different counts."""
    while True:
        shapes = [[[draw.randint(1, 5), draw.randint(5, 9), 0] for _ in range(num)] for num in nums]
        micros = [micro for rank in shapes for micro in rank]
        for micro in micros:
            micro[2] = draw.randint(1, micro[0] * micro[1] - 1)
        totals = [sum(micro[2] for micro in rank) for rank in shapes]
        is_clear = min(totals) * 2 <= max(totals) and max(totals) <= 60
        if is_clear and len({micro[2] for micro in micros}) == len(micros) and len({tuple(m[:2]) for m in micros}) > 1:
            return shapes


def draw_cases(seed: int) -> dict[int, list[dict[str, Any]]]:
    draw = random.Random(seed)
    plain, empty, absent = (draw_shapes(draw, [3, 3]) for _ in range(3))
    empty[draw.randrange(2)][1][2] = 0
    for micro in absent[draw.randrange(2)]:
        micro[2] = 0
    worlds = {2: [plain, empty, draw_shapes(draw, [1, 1]), absent], 3: [draw_shapes(draw, [1, 4, 2])]}
    return {
        size: [{"seed": (seed + size) % 10**6 + n, "shapes": shapes} for n, shapes in enumerate(some)]
        for size, some in worlds.items()
    }


def many_micro_batches(seed: int) -> dict[str, Any]:
    """Draw a step of equally large micro-batches, for the memory."""
    draw = random.Random(seed)
    shapes = [[[*LARGE, draw.randint(5, 40)] for _ in range(NUM_LARGE)] for _ in range(2)]
    return {"seed": seed % 10**6 + 10, "shapes": shapes}


def check(grade: Grade) -> None:
    largest = 0.0
    worlds = draw_cases(grade.seed)
    worlds[2].append(many_micro_batches(grade.seed))
    for size, cases in worlds.items():
        world = grade.world(size, {"cases": cases})
        calls = split(world.calls[0])
        for n, case in enumerate(cases):
            found = [rank[n] for rank in world.values]
            step = Step(case)
            largest = max(largest, check_gradients(grade, step, found))
            check_calls(grade, step, calls[n])
            check_loss(grade, step, found)
        if size == 2:
            check_memory(grade, step, found)
    step = Step(worlds[2][0])
    means = step.ways()["mean-of-means"][0]
    cosine = torch.nn.functional.cosine_similarity(means, step.gradient, dim=0).item()
    grade.measured("gradient, compared with one process that has all tokens", f"largest difference {largest:.1e}")
    words = f"cosine with the right one {cosine:.3f}, {means.norm() / step.gradient.norm():.2f} times as long"
    grade.measured(f"mean of the micro-batches' means, for {step.counts_text()} tokens", words)
    predict(grade)


def predict(grade: Grade) -> None:
    """Measure the predictions' example: 10 tokens of loss 2 on one rank, 90 tokens of loss 4 on the other."""
    first, second = (torch.full((num,), loss, requires_grad=True) for num, loss in ((10, 2.0), (90, 4.0)))
    grade.predicted("loss", torch.cat([first, second]).mean().item())
    ((first.mean() + second.mean()) / 2).backward()
    grade.predicted("weight", (first.grad[0] / second.grad[0]).item())


# ---- one process, and what each misconception makes of it ------------------------------------------------------------


class Step:
    """A step in one process: for each micro-batch the gradient of the sum of its losses, and that sum."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.size = case, len(case["shapes"])
        self.ranks = [[gradient_of_sum(case, batch) for batch in batches(case, rank)] for rank in range(self.size)]
        self.counts = [[micro[2] for micro in rank] for rank in case["shapes"]]
        self.trained = sum(map(sum, self.counts))
        everything = sum(total_gradient for rank in self.ranks for total_gradient, _ in rank)
        self.gradient = everything / self.trained
        self.loss = sum(loss for rank in self.ranks for _, loss in rank) / self.trained

    def counts_text(self) -> str:
        return " and ".join(str(rank) for rank in self.counts)

    def sum_of(self, weight) -> torch.Tensor:
        """Add the gradients of all micro-batches, each times `weight(rank, number)`."""
        return sum(
            weight(rank, n) * gradient
            for rank, all_of in enumerate(self.ranks)
            for n, (gradient, _) in enumerate(all_of)
        )

    def ways(self) -> dict[str, list[torch.Tensor]]:
        """Return each misconception's gradient: one for all ranks, or one for each."""
        size, counts, shapes = self.size, self.counts, self.case["shapes"]
        nums = [len(rank) for rank in counts]
        tokens = sum(num * length for rank in shapes for num, length, _ in rank)
        sequences = sum(num for rank in shapes for num, _, _ in rank)
        last = sum(rank[-1] for rank in counts)
        own = [sum(gradient for gradient, _ in rank) for rank in self.ranks]
        totals = list(map(sum, counts))
        found = {
            "mean-of-means": [self.sum_of(lambda r, n: ratio(1, counts[r][n] * nums[r] * size))],
            "mean-of-means.2": [self.sum_of(lambda r, n: ratio(1, counts[r][n] * size))],
            "own-total": [self.sum_of(lambda r, _: ratio(1, totals[r] * size))],
            "own-total.2": [self.sum_of(lambda r, _: ratio(1, totals[r]))],
            "divided-by-ranks": [self.gradient / size],
            "multiplied-again": [self.gradient * size],
            "never-divided": [self.gradient * self.trained / size],
            "never-divided.2": [self.gradient * self.trained],
            "ignored-count": [self.gradient * self.trained / tokens],
            "sequences-counted": [self.sum_of(lambda r, n: ratio(shapes[r][n][0], counts[r][n] * sequences))],
            "last-count": [self.sum_of(lambda *_: ratio(1, last))],
            "divided-by-micro-batches": [self.sum_of(lambda r, _: 1 / (self.trained * nums[r]))],
            "zeroed-between": [self.sum_of(lambda r, n: (n == nums[r] - 1) / self.trained)],
            "never-averages": [g * size / self.trained for g in own],
            "never-averages.2": [g / self.trained for g in own],
            "never-averages.3": [ratio(1, total) * g for g, total in zip(own, totals, strict=True)],
        }
        if len(set(nums)) == 1:
            columns = [sum(rank[n] for rank in counts) for n in range(nums[0])]
            found["mean-of-micro-steps"] = [self.sum_of(lambda _, n: ratio(1, columns[n] * nums[0]))]
        return found


def ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def gradient_of_sum(case, batch) -> tuple[torch.Tensor, float]:
    """Return the flat gradient of the sum of the losses of trained tokens, and that sum."""
    model, (tokens, labels) = make_model(case), batch
    is_trained = labels != IGNORED
    loss = cross_entropy(model(tokens)[is_trained], labels[is_trained], reduction="sum")
    loss.backward()
    return flat({name: p.grad for name, p in model.named_parameters()}, case), loss.item()


def flat(gradients: dict[str, torch.Tensor | None], case) -> torch.Tensor:
    """Return the gradients of the trained parameters as one vector, with zeros where there is none."""
    named = [(name, p) for name, p in make_model(case).named_parameters() if p.requires_grad]
    found = [gradients[name] for name, _ in named]
    parts = [torch.zeros_like(p) if g is None else g for g, (_, p) in zip(found, named, strict=True)]
    return torch.cat([part.detach().flatten().double() for part in parts])


WAYS = {
    "mean-of-means": "It is the mean of the micro-batches' means, each counting the same.",
    "mean-of-means.2": "It is the sum of the micro-batches' means, averaged over the ranks.",
    "own-total": "It is the mean over the ranks of each rank's own mean over its tokens.",
    "own-total.2": "It is the sum over the ranks of each rank's own mean over its tokens.",
    "divided-by-ranks": "It is the right one divided by the number of ranks.",
    "multiplied-again": "It is the right one times the number of ranks.",
    "never-divided": "It is the gradient of the sum over the tokens, divided by the number of ranks alone.",
    "never-divided.2": "It is the gradient of the sum over the tokens.",
    "ignored-count": "It is the gradient of the sum, divided by the number of all tokens, trained or not.",
    "sequences-counted": "In it each micro-batch's mean counts as much as the micro-batch has sequences.",
    "last-count": "It is the gradient of the sum, divided by the trained tokens of the ranks' last micro-batches.",
    "divided-by-micro-batches": "It is the right one, with each rank's part divided by its number of micro-batches.",
    "zeroed-between": "It is the part of the last micro-batches: the gradients of the earlier ones are lost.",
    "never-averages": "It is the rank's own part, times the number of ranks.",
    "never-averages.2": "It is the rank's own part.",
    "never-averages.3": "It is the gradient of the mean over the rank's own tokens.",
    "mean-of-micro-steps": "It is the mean over the micro-batches of the token mean over the ranks.",
}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def split(calls):
    """Return the all-reduces of each case that carry gradients."""
    cases = [[]]
    for call in calls:
        if call.op == "all_reduce" and call.numel == MARK and "int8" in call.dtype:
            cases.append([])
        elif call.numel > FEW:
            cases[-1].append(call)
    return cases


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def check_gradients(grade: Grade, step: Step, found: list[dict]) -> float:
    flats = [flat(one["gradients"], step.case) for one in found]
    if not all(close(one, step.gradient) for one in flats):
        explain(grade, step, flats)
    for rank, one in enumerate(flats):
        if not torch.equal(one, flats[0]):
            off = (one - flats[0]).abs().max().item()
            text = f"World of {step.size}: the gradients of ranks 0 and {rank} differ by up to {off:.1g}."
            grade.reject("unknown", f"{text} They must be equal, bit for bit.")
    return (flats[0] - step.gradient).abs().max().item()


def explain(grade: Grade, step: Step, flats: list[torch.Tensor]) -> NoReturn:
    where = f"World of {step.size}, micro-batches with {step.counts_text()} trained tokens"
    lost = [rank for rank, one in enumerate(flats) if not one.isfinite().all()]
    if lost:
        num = int((~flats[lost[0]].isfinite()).sum())
        text = (
            f"{where}: the gradient on rank {lost[0]} has {count(num, 'number')} that {'is' if num == 1 else 'are'} nan"
        )
        explain_nan(grade, step, f"{text} or infinite.")
    rank = max(range(step.size), key=lambda rank: (flats[rank] - step.gradient).abs().max().item())
    cosine = torch.nn.functional.cosine_similarity(flats[rank], step.gradient, dim=0).item()
    length = (flats[rank].norm() / step.gradient.norm()).item()
    says = f"{where}: the gradient on rank {rank} is {length:.4g} times as long as that of the token mean"
    says += f" (cosine of the two {cosine:.4f})."
    for id, way in step.ways().items():
        ways = way * step.size if len(way) == 1 else way
        if all(close(one, value) for one, value in zip(flats, ways, strict=True)):
            grade.reject(id.split(".")[0], f"{says} {WAYS[id]}")
    grade.reject("unknown", says)


def explain_nan(grade: Grade, step: Step, says: str) -> NoReturn:
    empty = [(rank, n) for rank, counts in enumerate(step.counts) for n, num in enumerate(counts) if num == 0]
    if not empty:
        grade.reject("unknown", says)
    rank, n = empty[0]
    grade.reject("nothing-trained", f"{says} Micro-batch {n + 1} of rank {rank} has no trained token.")


def check_calls(grade: Grade, step: Step, calls) -> None:
    trained = sum(p.nbytes for p in make_model(step.case).parameters() if p.requires_grad)
    sent = sum(call.num_bytes for call in calls)
    num = len(step.counts[0])
    if sent > 1.9 * trained:
        grade.reject(
            "averages-each-time",
            f"World of {step.size}, {count(num, 'micro-batch', 'micro-batches')}: the gradients have {trained:,} "
            f"bytes, but rank 0 passed {sent:,} to collectives. The gradient is right.",
        )


def check_memory(grade: Grade, step: Step, found: list[dict]) -> None:
    """Reject a rank that holds the activations of several micro-batches."""
    peak, needed = max(one["peak"] for one in found), bytes_of_one(step.case)
    says = (
        f"World of {step.size}, {NUM_LARGE} micro-batches on each rank, all equally large: the gradient and the loss "
        f"are right, but a rank holds up to {peak:,} bytes at a time. One micro-batch, forward and backward, needs "
        f"{needed:,}."
    )
    if peak > NUM_LARGE / 3 * needed:
        grade.reject("one-backward", says)
    grade.measured(f"most memory with {NUM_LARGE} micro-batches", f"{peak:,} bytes; one alone needs {needed:,}")


def bytes_of_one(case: dict[str, Any]) -> int:
    """Return the most memory of one micro-batch's forward and backward pass."""
    with LiveBytes() as live:
        gradient_of_sum(case, batches(case, 0)[0])
    return live.peak


def check_loss(grade: Grade, step: Step, found: list[dict]) -> None:
    for rank, one in enumerate(found):
        loss = one["loss"]
        if isinstance(loss, float) and math.isclose(loss, step.loss, rel_tol=1e-5):
            continue
        where = f"World of {step.size}, {step.counts_text()} trained tokens: the gradient is right, but rank {rank}"
        if loss is None:
            grade.reject("returns-nothing", f"{where} returned None; the step's loss is {step.loss:.6f}.")
        if not isinstance(loss, float):
            grade.reject("unknown", f"{where} returned {loss!r}; the step's loss is {step.loss:.6f}.")
        explain_loss(grade, step, rank, loss, where)


def explain_loss(grade: Grade, step: Step, rank: int, loss: float, where: str) -> NoReturn:
    sums = [sum(loss for _, loss in all_of) for all_of in step.ranks]
    totals = list(map(sum, step.counts))
    pairs = [zip(all_of, counts, strict=True) for all_of, counts in zip(step.ranks, step.counts, strict=True)]
    means = [[ratio(1, num) * loss for (_, loss), num in pair] for pair in pairs]
    own = [ratio(1, total) * one for one, total in zip(sums, totals, strict=True)]
    of_ranks = [sum(one) / len(one) for one in means]
    shown, right = distinct_texts(loss, step.loss)
    says = f"{where} returned {shown}; the step's loss is {right}."
    if not math.isfinite(loss):
        explain_nan(grade, step, says)
    told = [
        ("own-loss", own[rank], "Yours is the mean over this rank's tokens."),
        ("own-loss", sums[rank] / step.trained, "Yours is this rank's part of it."),
        (
            "own-loss",
            sums[rank] * step.size / step.trained,
            "Yours is this rank's part of it, times the number of ranks.",
        ),
        ("logged-otherwise", sum(of_ranks) / step.size, "Yours is the mean of the micro-batches' means."),
        ("logged-otherwise", of_ranks[rank], "Yours is the mean of this rank's micro-batches' means."),
        ("logged-otherwise", sum(own) / step.size, "Yours is the mean of the ranks' means."),
        ("logged-otherwise", means[rank][-1], "Yours is the mean of this rank's last micro-batch."),
        ("loss-times-ranks", step.loss * step.size, "Yours is the right one times the number of ranks."),
        ("loss-times-ranks", step.loss / step.size, "Yours is the right one divided by the number of ranks."),
    ]
    for id, value, words in told:
        if math.isclose(loss, value, rel_tol=1e-5):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)
