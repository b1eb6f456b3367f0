"""Compare two steps with one process that has all samples; count what each line of the learner's file sends."""

import math
import random
from collections import Counter
from typing import NoReturn

import torch
from ranks import MARK, OPTIONS, STEPS, Model, batch
from torch import nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

FREE = 0.1
"""The part of FSDP's bytes that a step may send in addition."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    five = {"seed": grade.seed % 10**6, "num_layers": 5, "width": 15, "vocabulary": 23, "samples": 4, "max_norm": 0.3}
    drawn = {"num_layers": draw.randint(3, 4), "width": draw.choice([11, 13]), "vocabulary": draw.choice([19, 22])}
    worlds = []
    for size, case in ((2, five), (3, five | drawn | {"seed": five["seed"] + 1, "max_norm": 50.0})):
        world = grade.world(size, case, seconds=20.0)
        check_sharding(grade, world, case)
        check_steps(grade, world, case)
        check_bytes(grade, world, case)
        check_units(grade, world, case)
        worlds.append((world, case))
    measure(grade, *worlds[0])


# ---- what a rank holds -----------------------------------------------------------------------------------------------


def padded(p, size):
    """Return the number of elements of a rank's shard of the first dimension, with padding."""
    return math.ceil(p.shape[0] / size) * p[0].numel()


def check_sharding(grade, world, case):
    model = Model(case)
    names = [name for name, _ in model.named_parameters()]
    found = world.values[0]
    if plain := found["plain"]:
        says = (
            f"World of {world.size}: after prepare, {len(plain)} of {len(found['names'])} parameters are plain tensors"
        )
        says += f" and not DTensors ({', '.join(plain[:3])}{', …' if len(plain) > 3 else ''})."
        rest = [name for name in names if not name.startswith("layers.")]
        if set(plain) - {"head.weight"} == set(rest):
            grade.reject("root-left-out", f"{says} They are those that belong to no layer.")
        grade.reject("never-sharded" if len(plain) >= len(names) else "unknown", says)
    if extra := [name for name in found["names"] if name not in names]:
        grade.reject(
            "tie-broken",
            f"World of {world.size}: after prepare, {extra[0]} is a separate parameter. Before, it was the same one "
            "as embedding.weight.",
        )
    whole, shard = (
        sum(4 * size_of(p) for p in model.parameters())
        for size_of in (torch.Tensor.numel, lambda p: padded(p, world.size))
    )
    if found["bytes"] > 1.5 * shard:
        grade.reject(
            "replicated",
            f"World of {world.size}: rank 0 holds {found['bytes']:,} bytes of parameters. All parameters together have "
            f"{whole:,}; a shard has {shard:,}.",
        )


# ---- the steps -------------------------------------------------------------------------------------------------------


def oracle(case, size):
    """Train one process with the same steps."""
    model, steps = Model(case), []
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for rank in range(size):
            inputs, targets = batch(case, rank, step)
            losses.append(nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
        (sum(losses) / size).backward()
        before = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        norm = nn.utils.clip_grad_norm_(model.parameters(), case["max_norm"]).item()
        optimizer.step()
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        losses = [loss.item() for loss in losses]
        numbers = {"gradient norm": norm, "loss": sum(losses) / size, "weight norm": norm_of(weights.values())}
        steps.append({"numbers": numbers, "losses": losses, "before": before, "weights": weights})
    return steps


def norm_of(tensors):
    return torch.cat([t.flatten() for t in tensors if t is not None]).norm().item()


def other_norms(tensors, size):
    """Return wrong values that people take for the norm of all tensors, by misconception; a list has one per rank."""
    tensors = [t for t in tensors if t is not None]
    norm, parts = (
        norm_of(tensors),
        [[t.chunk(size)[rank] for t in tensors if rank < len(t.chunk(size))] for rank in range(size)],
    )
    own = [norm_of(part) for part in parts]
    return {
        "norm-of-own-shard": own,
        "sum-of-norms": [sum(own)] * size,
        "sum-of-norms.2": [sum(t.norm().item() for t in tensors)] * size,
        "sum-of-norms.3": [sum(own) / size] * size,
        "sum-of-norms.4": [sum(t.norm().item() for t in part) for part in parts],
        "sum-of-norms.5": [norm**2] * size,
        "counted-again": [norm * size**0.5] * size,
        "sum-is-average": [norm * size] * size,
        "divided-twice": [norm / size] * size,
    }


def close(a, b):
    return isinstance(a, float) and math.isclose(a, b, rel_tol=1e-4)


def check_steps(grade, world, case):
    steps = oracle(case, world.size)
    for step, right in enumerate(steps):
        where = f"World of {world.size}, step {step + 1}"
        found = [rank["steps"][step] for rank in world.values]
        if step == 0:
            check_norm(grade, where, [rank["numbers"] for rank in found], right, "gradient norm", right["before"])
        check_clipping(grade, where, found[0]["gradients"], right, case["max_norm"])
        for rank, one in enumerate(found):
            if not all(same(one["weights"].get(name), weight) for name, weight in right["weights"].items()):
                explain_weights(grade, f"{where}, rank {rank}", one, right, Model(case))
        check_norm(grade, where, [rank["numbers"] for rank in found], right, "gradient norm", right["before"])
        check_norm(grade, where, [rank["numbers"] for rank in found], right, "weight norm", right["weights"])
        check_loss(grade, where, [rank["numbers"].get("loss") for rank in found], right)


def check_clipping(grade, where, gradients, right, max_norm):
    """Reject gradients that are right, but longer than they may be."""
    expected, length = right["numbers"]["gradient norm"], norm_of(gradients.values()) if any_in(gradients) else 0.0
    trained = {name: gradient for name, gradient in right["before"].items() if gradient is not None}
    if expected > max_norm and all(same(gradients.get(name), gradient) for name, gradient in trained.items()):
        grade.reject(
            "never-clips",
            f"{where}: after the step, the norm of the gradients is {length:.6g}, as before. max_norm is {max_norm:g}.",
        )


def any_in(tensors):
    return any(t is not None for t in tensors.values())


def same(one, other):
    return (
        isinstance(one, torch.Tensor) and one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5)
    )


def check_norm(grade, where, numbers, right, name, tensors):
    found, expected = [one.get(name) for one in numbers], right["numbers"][name]
    wrong = [rank for rank, value in enumerate(found) if not close(value, expected)]
    if not wrong:
        return
    says = f"{where}: rank {wrong[0]} returned the {name} {shown(found[wrong[0]])}, expected {expected:.6g}."
    others = other_norms(tensors.values(), len(numbers))
    id = min(others, key=lambda id: distance(found, others[id]))
    if distance(found, others[id]) < 1e-4:
        grade.reject(id.split(".")[0], f"{says} {EXPLAINED.get(id, '')}".strip())
    grade.reject("unknown", says)


def distance(found, values):
    """Return the largest relative difference of the ranks' numbers from these values."""
    if not all(isinstance(value, float) for value in found):
        return math.inf
    return max(abs(a - b) / b for a, b in zip(found, values, strict=True))


EXPLAINED = {
    "norm-of-own-shard": "It is the norm of this rank's shards.",
    "sum-of-norms": "It is the sum of the ranks' norms.",
    "sum-of-norms.2": "It is the sum of the norms of all tensors.",
    "sum-of-norms.3": "It is the mean of the ranks' norms.",
    "sum-of-norms.4": "It is the sum of the norms of this rank's shards.",
    "sum-of-norms.5": "It is the square of the norm.",
}


def shown(value):
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def explain_weights(grade, where, found, right, model) -> NoReturn:
    start = dict(model.named_parameters())
    wrong = [name for name, weight in right["weights"].items() if not same(found["weights"].get(name), weight)]
    moved = [name for name in wrong if not same(found["weights"].get(name), start[name].detach())]
    says = f"{where}: {len(wrong)} of {len(start)} parameters differ from those of one process that has all samples."
    if not moved and where.endswith("step 1, rank 0"):
        trained = sum(gradient is not None for gradient in right["before"].values())
        still = f"{says} They are the same as before the step"
        if len(wrong) == trained:
            grade.reject("optimizer-first", f"{still}: no parameter has changed.")
        grade.reject("some-never-trained", f"{still} ({', '.join(wrong[:3])}{', …' if len(wrong) > 3 else ''}).")
    name = max(wrong, key=lambda name: float((found["weights"][name] - right["weights"][name]).abs().max()))
    gap = (found["weights"][name] - right["weights"][name]).abs().max()
    grade.reject("unknown", f"{says} The largest difference, {gap:.2g}, is in {name}.")


def check_loss(grade, where, found, right):
    expected, size = right["numbers"]["loss"], len(found)
    wrong = [rank for rank, value in enumerate(found) if not close(value, expected)]
    if not wrong:
        return
    rank = wrong[0]
    says = f"{where}: rank {rank} returned the loss {shown(found[rank])}; the mean over all samples is {expected:.6g}."
    if all(map(close, found, right["losses"])) or all(close(value, right["losses"][0]) for value in found):
        grade.reject("own-loss", f"{says} It is the loss of one rank's samples.")
    if all(close(value, expected * size) for value in found):
        grade.reject("own-loss", f"{says} It is {size} times as large: a sum over the ranks.")
    grade.reject("unknown", says)


# ---- what is gathered ------------------------------------------------------------------------------------------------


def check_units(grade, world, case):
    """Check that a layer is sharded again after its forward, and that no layers are gathered together."""
    model = Model(case)
    layers = [sum(padded(p, world.size) for p in layer.parameters()) for layer in model.layers]
    rest = sum(padded(p, world.size) for p in model.parameters()) - sum(layers)
    most = max(rest, *layers)
    largest = max((call.numel for call in step_calls(world, 0) if "all_gather" in call.op), default=0)
    if largest > 1.2 * most:
        grade.reject(
            "one-unit",
            f"World of {world.size}: an all-gather brought {4 * largest * world.size:,} bytes to a rank. A layer has "
            f"{4 * layers[0] * world.size:,} with padding, what belongs to no layer {4 * rest * world.size:,}, and the "
            f"whole model {4 * (sum(layers) + rest) * world.size:,}.",
        )
    whole = world.values[0]["whole"]
    if sum(whole) > 1:
        grade.reject(
            "stays-whole",
            f"World of {world.size}: when the output layer ran, {sum(whole)} of {len(whole)} layers were still whole "
            "on rank 0.",
        )


def step_calls(world, step):
    """Return the calls of rank 0 in a step."""
    marks = [n for n, call in enumerate(world.calls[0]) if call.numel == MARK and "int8" in call.dtype]
    return world.calls[0][marks[2 * step] + 1 : marks[2 * step + 1]]


def sent(call, size):
    """Return the bytes that a rank sends in a ring."""
    per_byte = (size - 1) / size
    if "all_reduce" in call.op:
        return 2 * per_byte * call.num_bytes
    return call.num_bytes * (size - 1 if "all_gather" in call.op else per_byte)


def own_bytes(case, size):
    """Return the bytes that fully_shard itself sends: each layer gathered twice, the rest once; gradients reduced."""
    model = Model(case)
    model(batch(case, 0, 0)[0]).sum().backward()
    gathered = sum(padded(p, size) for p in model.parameters()) + sum(
        padded(p, size) for layer in model.layers for p in layer.parameters()
    )
    reduced = sum(padded(p, size) for p in model.parameters() if p.grad is not None)
    return 4 * (size - 1) * (gathered + reduced)


def by_line(world):
    """Return the bytes that rank 0 sends in the second step, for each line of the learner's file."""
    lines = Counter()
    for call in step_calls(world, 1):
        lines[call.line or "elsewhere"] += sent(call, world.size)
    return {line: round(num) for line, num in lines.most_common()}


def check_bytes(grade, world, case):
    lines, own = by_line(world), own_bytes(case, world.size)
    total = sum(lines.values())
    if total > (1 + FREE) * own:
        listed = "; ".join(f"{line} {num:,}" for line, num in list(lines.items())[:6])
        grade.reject(
            "gathers-tensors",
            f"World of {world.size}: rank 0 sent {total:,} bytes in a step. Sharded training itself sends {own:,}, in "
            f"forward and backward. By line of your file: {listed}.",
        )


def measure(grade, world, case):
    lines, own = by_line(world), own_bytes(case, world.size)
    listed = ", ".join(f"{line} {num:,}" for line, num in list(lines.items())[:5])
    grade.measured("bytes that rank 0 sends in a step, by line", listed)
    size, model = world.size, Model(case)
    kept = f"{world.values[0]['bytes']:,} and {world.values[0]['state bytes']:,}"
    grade.measured("bytes of parameters and of AdamW's states on rank 0 of 2", kept)
    small = sum(call.numel == 1 for call in step_calls(world, 1))
    if small > 2:
        grade.note(f"{count(small, 'collective')} of one number each: stack the numbers first, then one would do.")
    layers = {sum(padded(p, size) for p in layer.parameters()) for layer in model.layers}
    rest = sum(padded(p, size) for p in model.parameters()) - sum(
        padded(p, size) for layer in model.layers for p in layer.parameters()
    )
    gathers = [call.numel for call in step_calls(world, 1) if "all_gather" in call.op]
    usual = set(gathers) <= layers | {rest}
    grade.predicted("gathers", len(gathers) if usual else 2 * case["num_layers"] + 1)
    everything = 4 * (size - 1) * sum(padded(p, size) for p in model.parameters())
    grade.predicted("more", 100 * everything / own)
