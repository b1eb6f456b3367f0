"""Train on several ranks, and compare each gradient and weight with one process that has all texts."""

from typing import NoReturn

import torch
from task import PADDING, Model, global_batch
from torch import Tensor
from torch.nn.functional import cross_entropy

from frog.learn.grader.grade import Grade

SIZES = (2, 3)
TOLERANCE = 1e-3
"""Allowed difference as a share of the norm. Rounding explains 1e-5: AdamW makes full steps of tiny gradients."""


def check(grade: Grade) -> None:
    for size in SIZES:
        run = draw_run(grade.seed, size)
        check_run(grade, size, run, grade.world(size, run, seconds=4.0).values)
    measure(grade)


def draw_run(seed: int, size: int) -> dict[str, float]:
    return {"batch_size": 3 + seed % 3, "steps": 4, "lr": 0.01 + seed % 7 / 1000, "seed": seed % 10_000 + size}


def check_run(grade: Grade, size, run, ranks) -> None:
    where = f"World of {size}"
    for rank, value in enumerate(ranks):
        if "returned" in value:
            grade.reject("unknown", f"Rank {rank}: train returned {value['returned']}, expected the model.")
    first = ranks[0]
    expected = oracle(run, size)
    if first["weights"].keys() != expected["weights"].keys():
        grade.reject("unknown", f"{where}: the returned model has other parameters than task.py's.")
    if first["gradients"] and first["gradients"][0].keys() != expected["weights"].keys():
        gone = sorted(expected["weights"].keys() - first["gradients"][0].keys())
        grade.reject("unknown", f"{where}: in step 1 the optimizer has no gradient of {listed(gone) or 'the model'}.")
    if len(first["gradients"]) != run["steps"]:
        took = len(first["gradients"])
        grade.reject("unknown", f"{where}: the optimizer took {took} steps, expected {run['steps']}.")
    check_sharding(grade, where, size, ranks, expected)
    check_rates(grade, where, run, first, expected)
    for step, gradients in enumerate(expected["gradients"]):
        wrong = differing(first["gradients"][step], gradients)
        if wrong and step == 0:
            explain(grade, where, size, run, first["gradients"][0], expected)
        if wrong:
            explain_later(grade, where, step, wrong)
    for rank, value in enumerate(ranks):
        if wrong := differing(value["weights"], expected["weights"]):
            says = f"{where}: the gradients of each step are right, but rank {rank}'s weights at the end are not"
            grade.reject("unknown", f"{says}: {listed(wrong)}.")


# ---- one process -----------------------------------------------------------------------------------------------------


def oracle(run, size: int):
    """Train one process on the texts of all ranks; return the gradients of each step and the last weights."""
    model = new_model(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run["lr"])
    gradients = []
    for step in range(run["steps"]):
        tokens, targets = global_batch(step, run["batch_size"] * size, run["seed"])
        gradients.append(gradients_of(model, tokens, targets, (targets != PADDING).sum()))
        optimizer.step()
    return {"gradients": gradients, "weights": {name: p.detach().clone() for name, p in model.named_parameters()}}


def new_model(run) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(run["seed"])
        return Model()


def gradients_of(model: Model, tokens: Tensor, targets: Tensor, num_targets: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the sum of the losses, divided by this number."""
    model.zero_grad()
    loss = cross_entropy(model(tokens), targets.flatten(), ignore_index=PADDING, reduction="sum") / num_targets
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def mean_of_means(run, size: int) -> dict[str, Tensor]:
    """Return the mean over the ranks of the gradients of their own means, in the first step."""
    tokens, targets = global_batch(0, run["batch_size"] * size, run["seed"])
    model = new_model(run)
    parts = [(tokens[rank::size], targets[rank::size]) for rank in range(size)]
    means = [gradients_of(model, x, y, (y != PADDING).sum()) for x, y in parts]
    return {name: sum(one[name] for one in means) / size for name in means[0]}


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def check_sharding(grade: Grade, where: str, size: int, ranks, expected) -> None:
    numel = sum(weight.numel() for weight in expected["weights"].values())
    for rank, value in enumerate(ranks):
        says = f"{where}: after training, rank {rank} holds {value['held']:,} of the model's {numel:,} elements"
        if value["held"] == numel:
            grade.reject("not-sharded", f"{says}: all of them.")
        if any(value["early"]):
            at = "while the first block runs, the weights of the last one are whole already"
            grade.reject("whole-model-at-once", f"{where}, rank {rank}: {at}.")


def check_rates(grade: Grade, where: str, run, found, expected) -> None:
    for step, rates in enumerate(found["rates"]):
        for rate in rates:
            if abs(rate - run["lr"]) > 1e-9:
                says = f"{where}, step {step + 1}: the optimizer has a learning rate of {rate:g}; --lr was"
                ratio = middle_ratio(found["gradients"][0], expected["gradients"][0])
                grade.reject("rate-scaled", f"{says} {run['lr']:g}. The blocks' gradients are {ratio:.3f} times right.")


def explain(grade: Grade, where: str, size: int, run, found, expected) -> NoReturn:
    """Explain the gradients of the first step: by a factor for the blocks and one for all others, of some mean."""
    right = expected["gradients"][0]
    says = f"{where}, step 1: the gradients of {listed(differing(found, right))} differ from those of one process. "
    targets = global_batch(0, run["batch_size"] * size, run["seed"])[1]
    full = int((targets != PADDING).sum()) / targets.numel()
    bases = {
        "": (right, "one process's"),
        "mean": (mean_of_means(run, size), "the mean of the ranks' own means"),
        "padding": ({name: g * full for name, g in right.items()}, "a mean that counts padding, too"),
    }
    for base, (gradients, words) in bases.items():
        factors = factors_of(found, gradients, size)
        if factors is None:
            continue
        blocks, others = factors
        seen = f"They are {text_of(blocks)} {words} in the blocks, and {text_of(others)} elsewhere."
        grade.reject(belief_of(base, blocks, others, size), says + seen)
    grade.reject("unknown", says + "No one factor explains them.")


def belief_of(base: str, blocks: set[float], others: set[float], size: int) -> str:
    """Return the misconception that gives these factors."""
    if base == "padding" and blocks == others == {1.0}:
        return "padding-counted"
    if base == "mean":
        return "mean-of-means" if blocks == others == {1.0} else "sum-of-means"
    if base == "padding":
        return "unknown"
    less, more = 1 / size, float(size)
    if others == {1.0} and less in blocks:
        return "not-inherited"
    names = {(1.0, less): "root-forgotten", (less, less): "divided-again", (1.0, more): "loss-scaled"}
    names[(more, more)] = "added-and-scaled"
    if len(blocks) == len(others) == 1:
        return names.get((min(blocks), min(others)), "unknown")
    return "unknown"


def factors_of(found, expected, size: int) -> tuple[set[float], set[float]] | None:
    """Return the factors between two tables of gradients, in the blocks and elsewhere; None if there are others."""
    factors: tuple[set[float], set[float]] = (set(), set())
    for name, gradient in expected.items():
        for factor in (1.0, 1 / size, float(size), float(size * size), 1 / size**2):
            if near(found[name], factor * gradient):
                factors[0 if in_block(name) else 1].add(factor)
                break
        else:
            return None
    return factors


def explain_later(grade: Grade, where: str, step: int, wrong) -> NoReturn:
    says = f"{where}: the gradients of step 1 are right, those of step {step + 1} are not or are missing"
    grade.reject("unknown", f"{says}: {listed(wrong)}.")


def in_block(name: str) -> bool:
    return name.startswith("blocks.")


def middle_ratio(found, expected) -> float:
    """Return the median ratio between the norms of the blocks' gradients."""
    ratios = [float(found[name].norm() / expected[name].norm()) for name in found if in_block(name)]
    return sorted(ratios)[len(ratios) // 2]


def differing(found, expected) -> list[str]:
    return [name for name, value in expected.items() if name not in found or not near(found[name], value)]


def near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and bool((found - expected).norm() <= TOLERANCE * expected.norm())


def listed(names) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def text_of(factors: set[float]) -> str:
    return " or ".join(f"{factor:.3g} times" for factor in sorted(factors))


# ---- after a pass ----------------------------------------------------------------------------------------------------


def measure(grade: Grade) -> None:
    """Measure what a gradient of a quarter does to the first step of AdamW."""
    run = draw_run(grade.seed, 4)
    tokens, targets = global_batch(0, run["batch_size"] * 4, run["seed"])
    lengths = []
    for factor in (1.0, 0.25):
        model = new_model(run)
        optimizer = torch.optim.AdamW(model.parameters(), lr=run["lr"])
        before = model.blocks[0].wide.weight.detach().clone()
        gradients_of(model, tokens, targets, (targets != PADDING).sum() / factor)
        optimizer.step()
        lengths.append(float((model.blocks[0].wide.weight.detach() - before).norm()))
    grade.measured("gradients and weights on 2 and 3 ranks", "those of one process, in every step")
    grade.measured("AdamW's first step, with a quarter of the gradient", f"{lengths[1] / lengths[0]:.3f} times as long")
    grade.predicted("gradient", 0.25)
    grade.predicted("step", lengths[1] / lengths[0])
