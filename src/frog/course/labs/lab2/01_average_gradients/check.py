"""The gradient of the whole batch in one process is the oracle; then three steps, and the weights bit for bit."""

import torch
from ranks import gradients, make, samples_of_step
from torch import nn

from frog.grader.grade import Grade, World

MODEL_BYTES = 2_656_768
"""Of gradient, of the model in the prediction."""


def check(grade: Grade) -> None:
    largest = 0.0
    for size in (4, 1, 2):
        world = grade.world(size, {"seed": grade.seed})
        expected = whole_batch(grade.seed, size)
        one_call(grade, world, expected)
        three_steps(grade, world)
        largest = max(largest, *(far(after, expected) for after in of(world, "after")))
    grade.measured("gradient of the whole batch", f"largest difference {largest:.1e}")
    grade.measured("weights after 3 steps", "equal on all ranks, bit for bit")
    grade.predicted("bytes-sent", 2 * 3 / 4 * MODEL_BYTES)
    sent(grade)


def of(world: World, key: str) -> list:
    return [value[key] for value in world.values]


def whole_batch(seed: int, size: int) -> dict[str, torch.Tensor | None]:
    """The oracle: the mean of the ranks' losses, in one process."""
    model, x_NBD, y_NBV = make(seed, size)
    torch.stack([nn.functional.mse_loss(model(x), y) for x, y in zip(x_NBD, y_NBV, strict=True)]).mean().backward()
    return gradients(model)


def far(found: dict, expected: dict) -> float:
    """The largest difference of two tables of gradients; None and a tensor are infinitely far."""
    if any((found[name] is None) != (expected[name] is None) for name in expected):
        return float("inf")
    return max((found[n] - e).abs().max().item() for n, e in expected.items() if e is not None)


def scaled(table: dict, by: float) -> dict:
    return {name: None if value is None else value * by for name, value in table.items()}


def one_call(grade: Grade, world: World, expected: dict) -> None:
    """The gradients after one call, on every rank; the misconception that gives just these, if there is one."""
    size, before, after = world.size, of(world, "before"), of(world, "after")
    touched = [name for name, value in after[0].items() if value is not None and expected[name] is None]
    if touched:
        grade.reject(
            "touches-frozen",
            f"{touched[0]} had no gradient on any rank, and has one of {after[0][touched[0]].abs().max():.1g} now.",
        )
    if all(far(a, expected) <= 1e-6 for a in after):
        return
    late = sum(call.is_async and not call.waited for call in world.calls[0])
    if late:
        grade.reject("never-waits", f"{late} operations were started on rank 0 and never waited for.")
    values = world.values[0]
    moved = [
        name for name, value in values["weights"].items() if not torch.equal(value, values["weights before"][name])
    ]
    if moved:
        text = f"The gradients did not change, {len(moved)} weights did: {moved[0]} on rank 0 is rank 0's no more."
        grade.reject("averages-weights", text)
    if all(unchanged(a, b) for a, b in zip(after, before, strict=True)):
        count = world.count("all_reduce")
        grade.reject("result-dropped", f"{count} all-reduces ran on rank 0 and no gradient changed.")
    absent(grade, before, after, expected)
    if all(far(a, scaled(expected, size)) <= 1e-5 for a in after):
        ratio = (after[0]["first.bias"] / expected["first.bias"]).median()
        grade.reject("sum-is-average", f"Your gradients are {ratio:.3f} times the whole batch's at world {size}.")
    ratios = [(a["first.bias"] / expected["first.bias"]).median().item() for a in after]
    if size > 1 and all(far(a, scaled(expected, 1 / size)) <= 1e-6 for a in after):
        grade.reject("divided-twice", f"At world {size} your gradients are {ratios[0]:.3f} times the whole batch's.")
    if all(far(a, scaled(expected, ratio)) <= 1e-5 for a, ratio in zip(after, ratios, strict=True)):
        grade.reject("one-world-only", f"At world {size} your gradients are {ratios[0]:.3f} times the whole batch's.")
    if size > 1 and all(far(a, filled(before[0], expected)) <= 1e-6 for a in after):
        gap = far(after[0], expected)
        grade.reject("rank-0-decides", f"All ranks hold rank 0's own gradient, {gap:.1g} from the whole batch's.")
    gaps = [far(a, expected) for a in after]
    if gaps[0] <= 1e-6 and max(gaps) > 1e-4:
        text = f"At world {size} rank 0 holds the whole batch's gradients; those of the others are up to"
        grade.reject("only-rank-0-knows", f"{text} {max(gaps):.1g} off.")
    grade.compare(after[0], expected, f"gradient at world {size}", rtol=1e-5, atol=1e-6)
    grade.reject(
        "unknown", f"At world {size} the ranks hold different gradients, {far(after[-1], after[0]):.1g} apart."
    )


def absent(grade: Grade, before: list[dict], after: list[dict], expected: dict) -> None:
    """What is made of a parameter that only some ranks have a gradient of."""
    size = len(after)
    had = {name: sum(b[name] is not None for b in before) for name in expected}
    name = min(expected, key=lambda name: had[name] or size)
    ranks = [rank for rank, table in enumerate(after) if table[name] is None]
    if ranks and all(far(kept(a, b), kept(expected, b)) <= 1e-6 for a, b in zip(after, before, strict=True)):
        text = f"At world {size} {name} had a gradient on {had[name]} rank, and has none on ranks {ranks} now."
        grade.reject("absent-stays-none", text)
    counted = {name: None if value is None else value * size / had[name] for name, value in expected.items()}
    if all(far(a, counted) <= 1e-5 for a in after):
        text = f"At world {size} {name} had a gradient on {had[name]} rank, and yours is {size / had[name]:.3f} times"
        grade.reject("absent-not-counted", f"{text} the whole batch's.")


def kept(table: dict, before: dict) -> dict:
    """None wherever this rank had no gradient."""
    return {name: None if before[name] is None else value for name, value in table.items()}


def filled(table: dict, like: dict) -> dict:
    """Zeros for a gradient that this rank did not have, and that the whole batch has."""
    return {n: torch.zeros_like(like[n]) if v is None and like[n] is not None else v for n, v in table.items()}


def unchanged(after: dict, before: dict) -> bool:
    return all(
        after[name] is not None and torch.equal(after[name], value)
        for name, value in before.items()
        if value is not None
    )


def three_steps(grade: Grade, world: World) -> None:
    """Weights after three steps: the same bits on all ranks, and those of one process."""
    trained = of(world, "trained")
    for rank, table in enumerate(trained):
        for name, value in table.items():
            if not torch.equal(value, trained[0][name]):
                gap = (value - trained[0][name]).abs().max()
                grade.reject("steps-alone", f"After 3 steps {name} on rank {rank} is {gap:.1g} away from rank 0's.")
    expected = after_three_steps(grade.seed, world.size)
    for id, other in (
        ("never-clears", after_three_steps(grade.seed, world.size, clears=False)),
        ("clears-too-soon", after_three_steps(grade.seed, world.size, moves=False)),
    ):
        if far(trained[0], expected) > 1e-3 and far(trained[0], other) <= 1e-5:
            gap = far(trained[0], expected)
            grade.reject(id, f"After 3 steps at world {world.size} the weights are {gap:.1g} off one process's.")
    grade.compare(trained[0], expected, f"weights after 3 steps at world {world.size}", rtol=1e-3, atol=1e-3)


def after_three_steps(seed: int, size: int, clears: bool = True, moves: bool = True) -> dict[str, torch.Tensor]:
    """The weights of one process that has the whole batch."""
    model, x_NBD, y_NBV = make(seed, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3 if moves else 0):
        x = samples_of_step(x_NBD, seed, step)
        torch.stack([nn.functional.mse_loss(model(a), b) for a, b in zip(x, y_NBV, strict=True)]).mean().backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def sent(grade: Grade) -> None:
    """What a step cost, in the words of the next exercise."""
    world = grade.world(2, {"seed": grade.seed})
    calls = [call for call in world.calls[0] if not call.op.endswith("_object")]
    objects = [call for call in world.calls[0] if call.op.endswith("_object")]
    if objects:
        grade.note("Right, but each rank sent all of its gradient to all others. A ring sends 2(N-1)/N of it.")
    else:
        grade.note(f"{len(calls) // 4} collectives a step. DDP would use 1 bucket: lab 2.2.")
