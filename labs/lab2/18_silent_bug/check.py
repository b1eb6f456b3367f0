"""Train on several ranks, and compare every rank's weights with one process; explain them by simulated mistakes."""

from itertools import cycle, islice
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, TensorDataset

from frog.learn.grader.grade import Grade

SIZES = (2, 3)
TOLERANCE = 1e-4
"""Allowed difference, relative to a tensor's norm. Rounding explains 1e-6."""


def check(grade: Grade) -> None:
    gap = 0.0
    for size in SIZES:
        runs = draw_runs(grade.seed, size)
        world = grade.world(size, {"runs": runs}, work="work", seconds=4.0)
        for number, run in enumerate(runs):
            gap = max(gap, check_run(grade, world, size, run, [values[number] for values in world.values]))
    grade.measured("weights of every rank, compared with one process", f"largest difference {gap:.1e}")
    grade.measured("weights of the ranks after each step", "equal, bit for bit")
    grade.predicted("steps", -(-80 // (2 * 4) // 4))


def draw_runs(seed: int, size: int):
    """Draw runs in which the last group of an epoch has several micro-batches, one, and as many as the others."""
    shapes = [[(3, 2), (4, 3), (5, 2), (5, 3), (5, 4)][seed % 5], (4, 1), (3, 0)]
    runs = []
    for accumulate, rest in shapes:
        micro_batch = 2 + seed % 2
        samples = size * micro_batch * (2 * accumulate + rest)
        run = {"samples": samples, "micro_batch": micro_batch, "accumulate": accumulate, "epochs": 2}
        runs.append(run | {"lr": 0.02 + seed % 3 / 100, "seed": seed % 10_000 + len(runs)})
    return runs


def check_run(grade: Grade, world, size, run, ranks) -> float:
    right = simulate(run, size)
    for rank, value in enumerate(ranks):
        weights = value["weights"]
        if not isinstance(weights, dict) or weights.keys() != right[0].keys():
            names = list(weights) if isinstance(weights, dict) else type(weights).__name__
            grade.reject("unknown", f"Rank {rank}: train returned {names}, expected {list(right[0])}.")
        for name, value in right[0].items():
            if not isinstance(weights[name], Tensor) or weights[name].shape != value.shape:
                grade.reject("unknown", f"Rank {rank}: {name} is not a tensor of the shape {tuple(value.shape)}.")
    found = [value["weights"] for value in ranks]
    if not all(same(weights, right[0]) for weights in found):
        explain(grade, world, size, run, ranks, right)
    step = first_difference(ranks)
    if step is not None:
        grade.reject("unknown", f"World of {size}: after step {step}, the weights of the ranks differ.")
    return max(float((w[name] - right[0][name]).abs().max()) for w in found for name in w)


# ---- one process that plays all ranks --------------------------------------------------------------------------------

WAYS = {
    "own": "own-gradient",
    "averages weights, step": "averages-weights",
    "averages weights, epoch": "averages-weights",
    "averages weights, end": "averages-weights",
    "copies gradients": "copies-gradients",
    "copies weights, step": "copies-weights",
    "copies weights, epoch": "copies-weights",
    "copies weights, end": "copies-weights",
    "adds in each step": "sum-is-average",
    "adds in the last step": "sum-is-average",
    "reduces first": "reduces-too-early",
    "reduces all but last": "reduces-too-early",
    "drops the rest": "rest-dropped",
    "carries the rest over": "carried-over",
    "repeats micro-batches": "counted-twice",
    "divides by a full group": "full-division",
    "larger rate": "larger-rate",
    "larger rate, own": "larger-rate",
}
"""Ways to treat the gradients, and the misconceptions behind them."""

WORDS = {
    "own": "They result if each rank uses its own gradient in the last step of an epoch.",
    "averages weights": "They result if each rank steps with its own gradient and the weights are averaged after it.",
    "copies weights": "They result if each rank steps with its own gradient and then gets rank 0's weights.",
    "copies gradients": "They result if all ranks use rank 0's gradient.",
    "adds in each step": "They result from the sum of the ranks' gradients, which is {size} times their mean.",
    "adds in the last step": "They result if the last step of an epoch uses the sum of the ranks' gradients.",
    "reduces first": "They result if only the first micro-batch of a step is averaged over the ranks.",
    "reduces all but last": "They result if all micro-batches of a step but the last are averaged over the ranks.",
    "drops the rest": "They result if the last {rest} micro-batches of an epoch are left out.",
    "carries the rest over": "They result if the last {rest} micro-batches wait for the first step of the next epoch.",
    "repeats micro-batches": "They result if some micro-batches of the last step of an epoch count twice.",
    "divides by a full group": "They result if the loss in a step of {rest} micro-batches is divided by {accumulate}.",
    "larger rate": "They result from a learning rate of {size} times --lr.",
}


def new_model(run) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(run["seed"])
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def simulate(run, size: int, way: str = "right") -> list[dict[str, Tensor]]:
    """Train the model of each rank in turn, and return their weights. A way other than "right" is a mistake."""
    inputs = torch.randn(run["samples"], 6, generator=torch.Generator().manual_seed(run["seed"]))
    data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    models = [new_model(run) for _ in range(size)]
    rate = run["lr"] * (size if way.startswith("larger rate") else 1)
    optimizers = [torch.optim.Adam(model.parameters(), lr=rate, weight_decay=0.1) for model in models]
    left = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    for epoch in range(run["epochs"]):
        shares = [share_of(data, size, rank, epoch, run) for rank in range(size)]
        for groups in zip(*shares, strict=True):
            is_full = len(groups[0]) == run["accumulate"]
            if way == "drops the rest" and not is_full:
                continue
            parts = [gradients_of(model, group, run, way) for model, group in zip(models, groups, strict=True)]
            if way == "carries the rest over":
                parts = [[*one, extra] for one, extra in zip(parts, left, strict=True)]
                left = [total(one) if not is_full else [torch.zeros_like(g) for g in one[0]] for one in parts]
                if not is_full:
                    continue
            used = combine(parts, way, is_full)
            for model, optimizer, gradients in zip(models, optimizers, used, strict=True):
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p.grad = gradient.clone()
                optimizer.step()
            share_weights(models, way, "step")
        share_weights(models, way, "epoch")
    share_weights(models, way, "end")
    return [{name: p.detach().clone() for name, p in model.named_parameters()} for model in models]


def share_of(data, size: int, rank: int, epoch: int, run):
    """Return the groups of micro-batches that a rank takes in an epoch."""
    sampler = DistributedSampler(data, size, rank, seed=run["seed"])
    sampler.set_epoch(epoch)
    batches = torch.tensor(list(sampler)).split(run["micro_batch"])
    rows = [batches[at : at + run["accumulate"]] for at in range(0, len(batches), run["accumulate"])]
    return [[tuple(tensor[batch] for tensor in data.tensors) for batch in group] for group in rows]


def gradients_of(model: nn.Module, group, run, way: str) -> list[list[Tensor]]:
    """Return the gradient of each micro-batch, divided by their number."""
    if way == "repeats micro-batches":
        group = list(islice(cycle(group), run["accumulate"]))
    divisor = run["accumulate"] if way == "divides by a full group" else len(group)
    losses = [(model(inputs) - targets).pow(2).mean() / divisor for inputs, targets in group]
    return [list(torch.autograd.grad(loss, list(model.parameters()))) for loss in losses]


def total(parts: list[list[Tensor]]) -> list[Tensor]:
    return [sum(tensors) for tensors in zip(*parts, strict=True)]


def mean(ranks: list[list[Tensor]]) -> list[Tensor]:
    return [sum(tensors) / len(ranks) for tensors in zip(*ranks, strict=True)]


def combine(parts, way: str, is_full: bool) -> list[list[Tensor]]:
    """Return the gradients that each rank uses. parts: of each rank, those of each micro-batch."""
    own, size = [total(one) for one in parts], len(parts)
    if way.startswith("reduces"):
        cut = 1 if way == "reduces first" else len(parts[0]) - 1
        zeros = [torch.zeros_like(gradient) for gradient in parts[0][0]]
        early = mean([total([zeros, *one[:cut]]) for one in parts])
        return [total([early, *one[cut:]]) for one in parts]
    if way == "copies gradients":
        return [mean(own) if is_full else own[0]] * size
    if way == "adds in each step" or (way == "adds in the last step" and not is_full):
        return [total(own)] * size
    is_apart = way in ("own", "larger rate, own") or way.startswith(("averages weights", "copies weights"))
    return own if is_apart and not is_full else [mean(own)] * size


def share_weights(models, way: str, when: str) -> None:
    """Average the weights of the ranks, or copy rank 0's, if the mistake does so at this time."""
    if not way.endswith(f"weights, {when}"):
        return
    with torch.no_grad():
        for weights in zip(*(model.parameters() for model in models), strict=True):
            shared = sum(weights) / len(weights) if way.startswith("averages") else weights[0].clone()
            for weight in weights:
                weight.copy_(shared)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def explain(grade: Grade, world, size, run, ranks, right) -> NoReturn:
    found = [value["weights"] for value in ranks]
    accumulate = run["accumulate"]
    num_batches = run["samples"] // (size * run["micro_batch"])
    gap = max(float((weights[name] - right[0][name]).abs().max()) for weights in found for name in right[0])
    says = f"World of {size}, {num_batches} micro-batches of each rank in an epoch, {accumulate} in a step: "
    step = first_difference(ranks)
    since = f"the ranks' weights differ since step {step}, and " if step is not None else ""
    says += f"{since}at the end the weights differ by up to {gap:.2g} from those of one process. "
    for way, id in WAYS.items():
        if way == "copies gradients" and step is not None:
            continue  # rank 0's weights would be the same, had they been copied after the step
        if all(same(*pair) for pair in zip(found, simulate(run, size, way), strict=True)):
            words = WORDS[way.partition(",")[0]].format(size=size, accumulate=accumulate, rest=num_batches % accumulate)
            if id == "own-gradient" and world.count("barrier"):
                waits = f"The ranks waited for each other {world.count('barrier')} times, which sends no gradient."
                grade.reject("waits-alone", f"{says}{words} {waits}")
            grade.reject(id, says + words)
    grade.reject("unknown", says)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(bool((found[name] - value).norm() <= TOLERANCE * value.norm()) for name, value in expected.items())


def first_difference(ranks) -> int | None:
    """Return the first step after which two ranks have other weights, or None."""
    for number, weights in enumerate(zip(*(value["steps"] for value in ranks), strict=False), start=1):
        if any(not torch.equal(weights[0], other) for other in weights):
            return number
    return None
