"""Compare gradients with the whole batch's in one process, then the weights of three steps bit for bit."""

import torch
from ranks import MARK, OPTIMIZERS, SAMPLES, gradients, make, samples_of_step
from torch import nn

from frog.learn.grader.grade import Grade, World

MODEL_BYTES = 2_656_768
"""Bytes of gradient of the model in the prediction."""


def check(grade: Grade) -> None:
    largest = 0.0
    for size in (4, 1, 2):
        world = grade.world(size, {"seed": grade.seed})
        expected = whole_batch(grade.seed, size)
        one_call(grade, world, expected)
        for optimizer in OPTIMIZERS:
            three_steps(grade, world, optimizer)
        largest = max(largest, *(far(after, expected) for after in of(world, "after")))
    grade.measured("gradient of the whole batch", f"largest difference {largest:.1e}")
    grade.measured("weights after 3 steps", "equal on all ranks, bit for bit")
    grade.predicted("bytes-sent", 2 * 3 / 4 * MODEL_BYTES)
    sent(grade, world)


def of(world: World, key: str) -> list:
    return [value[key] for value in world.values]


def whole_batch(seed: int, size: int) -> dict[str, torch.Tensor | None]:
    """Compute the oracle in one process: the gradient of the mean of the ranks' losses."""
    model, x_NBD, y_NBV = make(seed, size)
    torch.stack([nn.functional.mse_loss(model(x), y) for x, y in zip(x_NBD, y_NBV, strict=True)]).mean().backward()
    return gradients(model)


def far(found: dict, expected: dict) -> float:
    """Return the largest difference between two tables of gradients; None and a tensor differ by infinity."""
    if any((found[name] is None) != (expected[name] is None) for name in expected):
        return float("inf")
    return max(((found[n] - e).abs().max().item() for n, e in expected.items() if e is not None), default=0.0)


def scaled(table: dict, by: float) -> dict:
    return {name: None if value is None else value * by for name, value in table.items()}


def one_call(grade: Grade, world: World, expected: dict) -> None:
    """Check the gradients after one call on every rank, and reject with the misconception that gives them."""
    size, before, after = world.size, of(world, "before"), of(world, "after")
    touched = [name for name, value in after[0].items() if value is not None and expected[name] is None]
    if touched:
        grade.reject(
            "touches-frozen",
            f"{touched[0]} had no gradient on any rank; now it has one, up to {after[0][touched[0]].abs().max():.1g}.",
        )
    if all(far(a, expected) <= 1e-6 for a in after):
        return
    late = sum(call.is_async and not call.waited for call in world.calls[0])
    if late:
        grade.reject("never-waits", f"Rank 0 started {late} operations and never waited for them.")
    stays = all(unchanged(a, b) for a, b in zip(after, before, strict=True))
    weights_moved(grade, world, stays)
    if stays:
        calls = first_call(world)
        if not calls:
            grade.reject("never-reduces", "average_gradients called no collective on rank 0, and no gradient changed.")
        text = f"{len(calls)} collectives ran on rank 0, but no gradient changed."
        grade.reject("result-dropped", text)
    left_out(grade, size, before, after, expected)
    absent(grade, before, after, expected)
    if all(far(a, scaled(expected, size)) <= 1e-5 for a in after):
        ratio = (after[0]["first.bias"] / expected["first.bias"]).median()
        grade.reject("sum-is-average", f"Your gradients are {ratio:.3f} times the whole batch's at world {size}.")
    ratios = [(a["first.bias"] / expected["first.bias"]).median().item() for a in after]
    if size > 1 and all(far(a, scaled(expected, 1 / size)) <= 1e-6 for a in after):
        grade.reject("divided-twice", f"At world {size} your gradients are {ratios[0]:.3f} times the whole batch's.")
    if all(far(a, scaled(expected, ratio)) <= 1e-5 for a, ratio in zip(after, ratios, strict=True)):
        one_factor(grade, size, ratios[0])
    if size > 1 and all(far(a, filled(before[0], expected)) <= 1e-6 for a in after):
        gap = far(after[0], expected)
        grade.reject(
            "rank-0-decides", f"All ranks hold rank 0's gradient, which differs from the whole batch's by {gap:.1g}."
        )
    gaps = [far(a, expected) for a in after]
    if gaps[0] <= 1e-6 and max(gaps) > 1e-4:
        text = f"At world {size} rank 0 holds the whole batch's gradients; the other ranks' gradients are off by up to"
        grade.reject("only-rank-0-knows", f"{text} {max(gaps):.1g}.")
    grade.compare(after[0], expected, f"gradient at world {size}", rtol=1e-5, atol=1e-6)
    grade.reject(
        "unknown", f"At world {size} the ranks hold different gradients, {far(after[-1], after[0]):.1g} apart."
    )


def first_call(world: World) -> list:
    """Return rank 0's calls in average_gradients, when the check called it directly."""
    return split(world)[0]


def split(world: World) -> tuple[list, list]:
    """Return rank 0's calls before and after the mark."""
    calls = [call for call in world.calls[0] if call.op != "new_group"]
    mark = next(n for n, call in enumerate(calls) if call.numel == MARK)
    return calls[:mark], calls[mark + 1 :]


def weights_moved(grade: Grade, world: World, stays: bool) -> None:
    """Explain a function that changes the weights: to their mean over the ranks, or otherwise."""
    own, now = of(world, "weights before"), of(world, "weights")
    moved = [name for name in own[0] if any(not torch.equal(a[name], b[name]) for a, b in zip(own, now, strict=True))]
    if not moved:
        return
    name = moved[0]
    mean = torch.stack([table[name] for table in own]).mean(0)
    averaged = all(torch.allclose(table[name], mean, atol=1e-4) for table in now)
    text = f"average_gradients changed {len(moved)} weights; {name} on rank {world.size - 1} moved by up to"
    text = f"{text} {(now[-1][name] - own[-1][name]).abs().max():.2g}."
    if averaged and stays:
        grade.reject("averages-weights", f"{text} The gradients did not change.")
    grade.reject("unknown", text)


def left_out(grade: Grade, size: int, before: list[dict], after: list[dict], expected: dict) -> None:
    """Explain a few wrong gradients: they are the rank's own, or belong to a weight that two layers share."""
    wrong = [n for n, e in expected.items() if any(far({n: a[n]}, {n: e}) > 1e-6 for a in after)]
    if len(wrong) == len([value for value in expected.values() if value is not None]):
        return
    if size > 1 and all(far(a, kept_from(b, expected, wrong)) <= 1e-6 for a, b in zip(after, before, strict=True)):
        text = f"At world {size} these gradients are still the rank's own: {', '.join(wrong)}. The others are right."
        grade.reject("some-left-out", text)
    for factor in (1 / size, size):
        if size > 1 and wrong == ["first.weight"] and all(far(a, once_scaled(expected, factor)) <= 1e-5 for a in after):
            text = f"At world {size} first.weight, which two layers share, has a gradient {factor:.3f} times the mean."
            grade.reject("tied-weight-twice", f"{text} The others are right.")


def kept_from(own: dict, expected: dict, names: list[str]) -> dict:
    return {name: own[name] if name in names else value for name, value in expected.items()}


def once_scaled(table: dict, by: float) -> dict:
    return table | {"first.weight": table["first.weight"] * by}


def one_factor(grade: Grade, size: int, ratio: float) -> None:
    """Explain gradients that are the mean times a factor, by the factor in another world."""
    other = 2 if size != 2 else 3
    world = grade.world(other, {"seed": grade.seed})
    found = of(world, "after")[0]["first.bias"] / whole_batch(grade.seed, other)["first.bias"]
    divisors = size / ratio, other / found.median().item()
    text = f"Your gradients are {ratio:.3f} times the mean at world {size},"
    text = f"{text} {other / divisors[1]:.3f} times at world {other}."
    constant = abs(divisors[0] / divisors[1] - 1) < 1e-3 and abs(divisors[0] - SAMPLES) > 1e-3
    grade.reject("one-world-only" if constant else "unknown", f"{text} {by_division(*divisors)}")


def by_division(first: float, second: float) -> str:
    return f"The sum over the ranks was divided by {first:.3g} and by {second:.3g}."


def absent(grade: Grade, before: list[dict], after: list[dict], expected: dict) -> None:
    """Check the parameters for which only some ranks have a gradient."""
    size = len(after)
    had = {name: sum(b[name] is not None for b in before) for name in expected}
    name = min(expected, key=lambda name: had[name] or size)
    ranks = [rank for rank, table in enumerate(after) if table[name] is None]
    if ranks and all(far(kept(a, b), kept(expected, b)) <= 1e-6 for a, b in zip(after, before, strict=True)):
        text = f"At world {size} {name} had a gradient on {had[name]} rank; after the call ranks {ranks} have none."
        grade.reject("absent-stays-none", text)
    counted = {name: None if value is None else value * size / had[name] for name, value in expected.items()}
    if all(far(a, counted) <= 1e-5 for a in after):
        text = f"At world {size} {name} had a gradient on {had[name]} rank, and yours is {size / had[name]:.3f} times"
        grade.reject("absent-not-counted", f"{text} the whole batch's.")


def kept(table: dict, before: dict) -> dict:
    """Return the table with None where this rank had no gradient."""
    return {name: None if before[name] is None else value for name, value in table.items()}


def filled(table: dict, like: dict) -> dict:
    """Return the table with zeros for gradients that are None here but not in `like`."""
    return {n: torch.zeros_like(like[n]) if v is None and like[n] is not None else v for n, v in table.items()}


def unchanged(after: dict, before: dict) -> bool:
    return all(
        after[name] is not None and torch.equal(after[name], value)
        for name, value in before.items()
        if value is not None
    )


def three_steps(grade: Grade, world: World, optimizer: str) -> None:
    """Check the weights after three steps: equal bits on all ranks, close to one process; then the losses."""
    results = [trained[optimizer] for trained in of(world, "trained")]
    trained = [result["weights"] for result in results]
    for rank, table in enumerate(trained):
        for name, value in table.items():
            if not torch.equal(value, trained[0][name]):
                gap = (value - trained[0][name]).abs().max()
                calls = split(world)[1]
                text = (
                    f"After 3 steps with {optimizer}, {name} on rank {rank} differs from rank 0's by up to {gap:.1g}."
                )
                if not calls:
                    grade.reject("steps-alone", f"{text} train_step called no collective.")
                grade.reject("averages-too-late", f"{text} train_step called {len(calls)} collectives in total.")
    expected, losses = after_three_steps(grade.seed, world.size, optimizer)
    for id, other in (
        ("never-clears", after_three_steps(grade.seed, world.size, optimizer, clears=False)[0]),
        ("clears-too-soon", after_three_steps(grade.seed, world.size, optimizer, moves=False)[0]),
    ):
        if far(trained[0], expected) > 1e-3 and far(trained[0], other) <= 1e-5:
            gap = far(trained[0], expected)
            text = f"After 3 steps with {optimizer} at world {world.size}, the weights differ by up to {gap:.1g}"
            grade.reject(id, f"{text} from those of one process.")
    near = 1e-3 if optimizer == "AdamW" else 1e-5
    what = f"weights after 3 steps with {optimizer} at world {world.size}"
    grade.compare(trained[0], expected, what, rtol=near, atol=near)
    for rank, result in enumerate(results):
        check_returned(grade, rank, result["returned"], losses)


def check_returned(grade: Grade, rank: int, returned: list, losses: list[list[float]]) -> None:
    """Check that each step returns a number: the loss of this rank's samples before the step."""
    for step, (found, expected) in enumerate(zip(returned, losses, strict=True)):
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            kind = "a tensor" if isinstance(found, torch.Tensor) else repr(found)
            grade.reject("returns-otherwise", f"train_step returned {kind} on rank {rank}, expected a float.")
        if abs(found - expected[rank]) > 1e-4 * (1 + abs(expected[rank])):
            mean = sum(expected) / len(expected)
            text = (
                f"In step {step + 1} train_step returned {found:.5g} on rank {rank}. Before the step, the loss of this"
            )
            text += f" rank's samples was {expected[rank]:.5g}; the mean over the ranks was {mean:.5g}."
            grade.reject("returns-otherwise", text)


def after_three_steps(
    seed: int, size: int, name: str, clears: bool = True, moves: bool = True
) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Train one process on the whole batch; return its weights, and the losses of each rank's samples in each step."""
    model, x_NBD, y_NBV = make(seed, size)
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for step in range(3 if moves else 0):
        x = samples_of_step(x_NBD, seed, step)
        of_ranks = torch.stack([nn.functional.mse_loss(model(a), b) for a, b in zip(x, y_NBV, strict=True)])
        losses.append(of_ranks.tolist())
        of_ranks.mean().backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}, losses


def sent(grade: Grade, world: World) -> None:
    """Note the communication of a step, and how the next exercise improves it."""
    calls = first_call(world)
    if any(call.op.endswith("_object") for call in calls):
        grade.note("Right, but each rank sent its whole gradient to all others. A ring sends 2(N-1)/N times its size.")
    else:
        grade.note(f"{len(calls)} collectives per step. DDP would use 1 bucket: lab 2.2.")
