"""Compare three steps with Muon in one process, whose orthogonalization is computed from singular values."""

import itertools
import random
from typing import NoReturn

import torch
from ranks import MARK, MOMENTUM, RATE, STEPS, counts_by_parameter, gradients, numel, weights

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

COEFFICIENTS = 3.4445, -4.7750, 2.0315
SENT = {
    "all_reduce": 2,
    "broadcast": 1,
    "scatter": 1,
    "reduce": 1,
    "gather": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
}
"""Bytes that a rank sends on average, in (N - 1)/N of the tensor's: N ranks, a ring or a direct message."""
GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")


def draw_case(seed: int, layout: str) -> dict:
    draw = random.Random(seed)
    rows = [draw.choice([7, 9, 11]), draw.choice([3, 5]), draw.choice([9, 11, 13]), draw.choice([7, 9])]
    columns = [draw.randint(4, 5), draw.randint(7, 9), draw.randint(3, 6), draw.randint(8, 10)]
    shapes = [[rows[0], columns[0]], [rows[0]], [rows[1], columns[1]], [1, 4], [rows[2], columns[2]], [3]]
    shapes.append([rows[3], columns[3]])
    return {"seed": seed % 10**6, "layout": layout, "shapes": shapes, "quiet": draw.choice([2, 4]), "quiet_step": 0}


def check(grade: Grade) -> None:
    largest = 0.0
    for size, layout in ((2, "rows"), (3, "flat")):
        case = draw_case(grade.seed + size, layout)
        world = grade.world(size, case)
        right = simulate(case, size)
        check_waited(grade, world)
        largest = max(largest, check_weights(grade, case, world, right))
        check_momentum(grade, case, world, right)
        check_in_place(grade, case, world)
        if layout == "rows":
            check_bytes(grade, case, world)
    grade.measured("weights after 3 steps, compared with one process", f"largest difference {largest:.1e}")
    norm = measure_halves(grade, random.Random(grade.seed))
    grade.predicted("norm-of-halves", norm)
    grade.predicted("bytes-received", 48e6 * 7 / 8)
    grade.note("If every rank orthogonalizes every matrix, N ranks do the same work N times. They could share it.")


# ---- Muon in one process, and what each misconception makes of it ----------------------------------------------------


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Apply the five iterations of the Newton-Schulz polynomial to the singular values."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm().clamp(min=1e-7)
    for _ in range(5):
        values = sum(factor * values**power for factor, power in zip(COEFFICIENTS, (1, 3, 5), strict=True))
    return left * values @ right


def simulate(case: dict, size: int, way: str = "right") -> list[dict]:
    """Return the whole weights and means after each step, flattened, in float64."""
    whole = [weight.double() for weight in weights(case)]
    means, steps = [torch.zeros_like(weight) for weight in whole], []
    for step in range(STEPS):
        grads = [grad.double() for grad in gradients(case, step)]
        for n, counts in enumerate(counts_by_parameter(case, size)):
            grad = grads[n] / size if way == "divides-again" else grads[n]
            whole[n] = whole[n] - RATE * update_of(way, case["shapes"][n], counts, grad, means[n])
        steps.append({"weights": list(whole), "momentum": [mean.clone() for mean in means]})
    return steps


def update_of(way: str, shape: list[int], counts: list[int], grad: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Return a parameter's update and change its mean in place."""
    is_matrix = len(shape) == 2
    if way == "momentum-of-updates" and is_matrix:
        grad = orthogonalize(grad.view(shape)).flatten()
    if way == "momentum-adds-up":
        mean.mul_(MOMENTUM).add_(grad)
        update = grad + MOMENTUM * mean
    else:
        mean.lerp_(grad, 1 - MOMENTUM)
        update = mean.clone() if way == "plain-momentum" else grad.lerp(mean, MOMENTUM)
        if way == "update-kept":
            mean.copy_(update)
    if not is_matrix:
        if way == "vectors-too":
            return orthogonalize(update[None]).flatten()
        if way == "vectors-too.2":
            return torch.cat([orthogonalize(part[None]).flatten() for part in update.split(counts)])
        return update
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    if way == "scale-inverted":
        scale = max(1.0, shape[1] / shape[0]) ** 0.5
    if way == "never-orthogonal":
        return update
    if way in ("never-orthogonal.2", "momentum-of-updates"):
        return update * scale
    return orthogonalized(way, shape, counts, update, scale)


def orthogonalized(way: str, shape: list[int], counts: list[int], update: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the orthogonalized and scaled update of a matrix."""
    parts, starts = update.split(counts), [0, *itertools.accumulate(counts)]
    own_scales = [max(1.0, num / shape[1] ** 2) ** 0.5 for num in counts]
    if way.startswith("as-one-row"):
        return torch.cat([orthogonalize(part[None]).flatten() for part in parts]) * (scale if "2" in way else 1.0)
    if way.startswith("only-own-elements"):
        found = []
        for part, start, own_scale in zip(parts, starts, own_scales, strict=False):
            filled = torch.zeros_like(update)
            filled[start : start + len(part)] = part
            filled = orthogonalize(filled.view(shape)).flatten() * (own_scale if "2" in way else scale)
            found.append(filled[start : start + len(part)])
        return torch.cat(found)
    if way == "padding-kept":
        longest = max(counts)
        padded = torch.cat([torch.nn.functional.pad(part, (0, longest - len(part))) for part in parts])
        update = padded[: len(update)]
    whole = orthogonalize(update.view(shape)).flatten()
    if way == "own-shape":
        return torch.cat([part * own for part, own in zip(whole.split(counts), own_scales, strict=True)])
    return whole * scale


WAYS = {
    "never-orthogonal": "The matrices' updates are the momentum itself: nothing was orthogonalized.",
    "never-orthogonal.2": "The matrices' updates are the scaled momentum: nothing was orthogonalized.",
    "only-own-elements": "Each rank's update is the orthogonalization of its own elements alone.",
    "only-own-elements.2": "Each rank's update is the orthogonalization of its own elements alone.",
    "as-one-row": "Each rank's update has the direction of its own elements and the length of an orthogonalized row.",
    "as-one-row.2": "Each rank's update has the direction of its own elements and the length of an orthogonalized row.",
    "padding-kept": "That is the update of a matrix that has the zeros of the padding between the ranks' elements.",
    "own-shape": "Each rank scaled its part by sqrt(max(1, rows / columns)) of the rows that it holds.",
    "scale-inverted": "That is the result of a factor sqrt(max(1, columns / rows)).",
    "update-kept": "That is the result if the update replaces the mean in piece.momentum.",
    "momentum-of-updates": "That is the momentum of orthogonalized gradients.",
    "momentum-adds-up": "That is the result if the mean is computed as momentum * mean + grad.",
    "plain-momentum": "That is the result of an update that is the mean alone.",
    "vectors-too": "Each vector's update has the length of an orthogonalized row, whatever its gradient.",
    "vectors-too.2": "Each rank's part of a vector has the length of an orthogonalized row, whatever its gradient.",
    "divides-again": "That is the result for gradients that are divided by the number of ranks.",
}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def check_waited(grade: Grade, world) -> None:
    started = [call for call in world.calls[0] if call.is_async]
    waited = sum(call.waited for call in started)
    if waited < len(started):
        text = f"World of {world.size}: rank 0 started {count(len(started), 'asynchronous operation')}"
        grade.reject("not-waited", f"{text} and waited for {waited}.")


def check_weights(grade: Grade, case: dict, world, right: list[dict]) -> float:
    """Reject weights that are not those of one process; return the largest difference."""
    largest = 0.0
    for step, expected in enumerate(right):
        found = assembled(world, step)
        for n, weight in enumerate(expected["weights"]):
            if not close(found[n], weight):
                explain(grade, case, world, right, step, n)
            largest = max(largest, (found[n] - weight).abs().max().item())
    return largest


def check_in_place(grade: Grade, case: dict, world) -> None:
    """Reject right numbers in new tensors: the model and its checkpoint hold the old ones."""
    for field, name in (("rebound", "piece.weight"), ("momentum rebound", "piece.momentum")):
        for rank, value in enumerate(world.values):
            for step, seen in enumerate(value):
                if any(seen[field]):
                    text = f"World of {world.size}, step {step + 1}: {name} of {sum(seen[field])} parameters is a new "
                    grade.reject("not-in-place", f"{text}tensor on rank {rank}. Its numbers are right.")


def assembled(world, step: int) -> list[torch.Tensor]:
    """Return the whole parameters, put together from all ranks' pieces."""
    ranks = [value[step]["weights"] for value in world.values]
    return [torch.cat(parts).double() for parts in zip(*ranks, strict=True)]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)


def explain(grade: Grade, case: dict, world, right: list[dict], step: int, n: int) -> NoReturn:
    """Name the misconception that gives these weights. Parameter `n` is the first that differs, after `step`."""
    size, shape, found = world.size, case["shapes"][n], assembled(world, step)[n]
    before = right[step - 1]["weights"][n] if step else weights(case)[n].double()
    moved, expected = found - before, right[step]["weights"][n] - before
    kind = f"{shape[0]} x {shape[1]} matrix" if len(shape) == 2 else f"vector of {shape[0]}"
    held = " and ".join(map(str, counts_by_parameter(case, size)[n]))
    cosine = torch.nn.functional.cosine_similarity(moved, expected, dim=0).item()
    says = (
        f"World of {size}, step {step + 1}: the {kind}, of which the ranks hold {held} elements, moved by "
        f"{moved.norm():.4f}, in one process by {expected.norm():.4f} (cosine of the two {cosine:.4f})."
    )
    if not moved.isfinite().all():
        grade.reject("unknown", f"World of {size}, step {step + 1}: the weights of the {kind} are not finite.")
    rebound = [rank for rank, value in enumerate(world.values) if value[step]["rebound"][n]]
    if rebound and not moved.any():
        text = f"World of {size}, step {step + 1}: piece.weight of the {kind} is a new tensor on rank {rebound[0]}"
        grade.reject("not-in-place", f"{text}; the model's own tensor is unchanged.")
    still = [rank for rank in range(size) if is_still(case, world, rank)]
    if still and all(is_right(case, world, right, rank) for rank in range(size) if rank not in still):
        some = f"rank{'s' if len(still) > 1 else ''} {' and '.join(map(str, still))}"
        grade.reject("others-keep-still", f"{says} On {some} no matrix ever changed.")
    for id, words in WAYS.items():
        if fits(world, simulate(case, size, id)):
            grade.reject(id.split(".")[0], f"{says} {words}")
    grade.reject("unknown", says)


def is_still(case: dict, world, rank: int) -> bool:
    """True if the rank has changed none of its matrices."""
    start = zip(weights(case), counts_by_parameter(case, world.size), strict=True)
    mine = [whole.split(counts)[rank] for whole, counts in start]
    pairs = zip(case["shapes"], world.values[rank][-1]["weights"], mine, strict=True)
    return all(torch.equal(found, first) for shape, found, first in pairs if len(shape) == 2)


def is_right(case: dict, world, right: list[dict], rank: int) -> bool:
    """True if the rank's pieces are right after each step."""
    counts = counts_by_parameter(case, world.size)
    return all(
        close(found, weight.split(some)[rank])
        for step, expected in enumerate(right)
        for found, weight, some in zip(world.values[rank][step]["weights"], expected["weights"], counts, strict=True)
    )


def fits(world, steps: list[dict]) -> bool:
    return all(
        close(found, weight)
        for step, expected in enumerate(steps)
        for found, weight in zip(assembled(world, step), expected["weights"], strict=True)
    )


def check_momentum(grade: Grade, case: dict, world, right: list[dict]) -> None:
    """Reject a mean that is not in the piece, where a checkpoint would look for it."""
    counts, last = counts_by_parameter(case, world.size), right[-1]["momentum"]
    for rank, value in enumerate(world.values):
        for n, found in enumerate(value[-1]["momentum"]):
            expected = last[n].split(counts[n])[rank]
            where = (
                f"World of {world.size}: the weights are right, but after {STEPS} steps piece.momentum of parameter {n}"
            )
            if found.numel() != expected.numel():
                text = f"{where} has {count(found.numel(), 'element')} on rank {rank}; it holds {expected.numel()}."
                grade.reject("momentum-elsewhere", text)
            if expected.numel() and not found.any():
                grade.reject("momentum-elsewhere", f"{where} is still zero on rank {rank}.")
            what = f"piece.momentum of parameter {n} on rank {rank} of {world.size}"
            grade.compare(found.double().flatten(), expected, what, rtol=1e-4, atol=1e-5)


def check_bytes(grade: Grade, case: dict, world) -> None:
    """Compare the bytes that all ranks send in a step with one gather of each matrix, padded to equal parts."""
    size = world.size
    steps = [[list(part) for part in steps_of(calls)] for calls in world.calls]
    last = [calls[STEPS - 1] for calls in steps]
    sent = sum(sent_by(call, size) for calls in last for call in calls)
    matrices = [n for n, shape in enumerate(case["shapes"]) if len(shape) == 2]
    counts = counts_by_parameter(case, size)
    padded = 4 * (size - 1) * size * sum(max(counts[n]) for n in matrices)
    whole = 4 * sum(numel(case["shapes"][n]) for n in matrices)
    seen = (
        f"World of {size}: in a step the ranks send {sent:,.0f} bytes; one gather of each matrix would send {padded:,}"
    )
    if sent > 1.6 * padded:
        calls = [call for call in last[0] if call.num_bytes]
        gathers, sums = (sum(call.op in ops for call in calls) for ops in (GATHERS, ("all_reduce",)))
        text = f"{seen}, padded. The weights are right. Rank 0 calls {count(len(calls), 'collective')}"
        if gathers >= 2 * len(matrices):
            grade.reject("gathers-more", f"{text}, {gathers} of them gathers, for {len(matrices)} matrices.")
        if sums >= len(matrices):
            grade.reject("sums-zeros", f"{text}, {sums} of them all-reduces, for {len(matrices)} matrices.")
        grade.reject("unknown", f"{text} for {len(matrices)} matrices.")
    grade.measured("bytes that the ranks send in a step, world of 2", f"{sent:,.0f}; the matrices have {whole:,}")
    if sent > 1.1 * padded:
        grade.note(f"{seen}: yours are {100 * (sent / padded - 1):.0f} % more. Which of them does no rank need?")


def steps_of(calls):
    """Yield the calls of each step."""
    step = []
    for call in calls:
        if call.op == "all_reduce" and call.numel == MARK and "int8" in call.dtype:
            yield step
            step = []
        else:
            step.append(call)


def sent_by(call, size: int) -> float:
    if call.op in GATHERS:
        return call.num_bytes * (size - 1)
    if call.op in ("send", "isend"):
        return call.num_bytes
    return call.num_bytes * SENT.get(call.op, 0) * (size - 1) / size


def measure_halves(grade: Grade, draw: random.Random) -> float:
    """Measure what two ranks lose that each orthogonalize their half of a matrix; return the length of both halves."""
    matrix = torch.randn(8, 4, generator=torch.Generator().manual_seed(draw.randrange(10**6)), dtype=torch.float64)
    halves = torch.cat([nearest(half) for half in matrix.chunk(2)])
    cosine = torch.nn.functional.cosine_similarity(halves.flatten(), nearest(matrix).flatten(), dim=0).item()
    words = f"cosine with the whole's {cosine:.3f}, {halves.norm() / nearest(matrix).norm():.2f} times as long"
    grade.measured("update of an 8 x 4 matrix, of which two ranks each orthogonalize their half", words)
    return halves.norm().item()


def nearest(matrix: torch.Tensor) -> torch.Tensor:
    """Return the matrix with all singular values 1."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right
