"""Compare three steps with one process that has all samples, and check the dtypes that occurred."""

import math
import random

import torch
from ranks import STEPS, make_batch, make_model, make_optimizer, squares

from frog.learn.grader.grade import Grade

BF16, FLOAT32 = "torch.bfloat16", "torch.float32"


def check(grade: Grade) -> None:
    case = {"seed": grade.seed % 1_000_000, "samples": random.Random(grade.seed).choice([6, 10])}
    for size, optimizer in ((2, "SGD"), (4, "SGD"), (4, "Adam")):
        check_world(grade, case | {"optimizer": optimizer}, size)
    case["optimizer"] = "SGD"
    own, other = (run(case, 4, torch.bfloat16, way) for way in ("mean", "reduced in bf16"))
    plain = run(case, 4, torch.float32, "mean")[0]["loss"]
    gap = abs(plain - own[0]["loss"]) / plain
    grade.measured("loss of the first step, bf16 against float32", f"relative difference {gap:.1e}")
    off = largest_difference(own[-1]["weights"], other[-1]["weights"])
    grade.measured("weights after three steps, if gradients were added in bf16", f"off by {off:.1e}")
    grade.predicted("smallest-step", smallest_step())


def check_world(grade, case, size):
    world = grade.world(size, case)
    expected = oracle(case, size)
    check_dtypes(grade, size, world)
    for step in range(STEPS):
        check_step(grade, step, [rank[step] for rank in world.values], expected, case)


def smallest_step() -> float:
    """Find by trial the power of two above which an update changes 1.0 in bf16."""
    step = 1.0
    while torch.tensor(1.0 + step * 1.001).bfloat16() != 1.0:
        step /= 2
    return step * 2


def largest_difference(weights, other) -> float:
    return max((a - b).abs().max().item() for a, b in zip(weights, other, strict=True))


def check_dtypes(grade, size, world):
    for rank, steps in enumerate(world.values):
        seen = sorted({dtype for step in steps for dtype in step["products"]})
        where = f"World of {size}, rank {rank}"
        if any(p.dtype != torch.float32 for step in steps for p in step["weights"]):
            grade.reject("weights-cast", f"{where}: after a step the weights are {steps[0]['weights'][0].dtype}.")
        if any(step["used"] == [BF16] for step in steps):
            grade.reject("weights-cast", f"{where}: the forward pass found the weights in bfloat16.")
        if not seen:
            grade.reject("unknown", f"{where}: the model's layers were never called.")
        if seen == ["torch.float16"]:
            grade.reject("float16-instead", f"{where}: the model's matrix products ran in float16.")
        if FLOAT32 in seen:
            grade.reject("never-cast", f"{where}: the model's matrix products ran in float32, not in bfloat16.")
        if seen != [BF16]:
            grade.reject("unknown", f"{where}: the model's matrix products ran in {', '.join(seen)}.")
        losses = sorted({dtype for step in steps for dtype in step["losses"]})
        if losses != [FLOAT32]:
            text = f"returned {', '.join(losses)}" if losses else "was never called"
            grade.reject("loss-in-bf16" if losses else "unknown", f"{where}: loss_of {text}.")
        if any(step["inside"] for step in steps):
            grade.reject("backward-inside", f"{where}: backward ran while autocast was on.")
    reduced = [call for call in world.calls[0] if call.numel > 1 and call.dtype in ("bfloat16", BF16)]
    if reduced:
        call = reduced[0]
        grade.reject(
            "reduce-in-bf16", f"World of {size}: {call.op} of {call.numel} numbers in bfloat16 (line {call.line})."
        )


def check_step(grade, step, ranks, expected, case):
    where = f"World of {len(ranks)}, {case['optimizer']}, step {step + 1}"
    for rank, found in enumerate(ranks):
        own = expected["own"][step]
        if not close(found["weights"], own["weights"]):
            explain(grade, f"{where}, rank {rank}", step, rank, found["weights"], expected, case, len(ranks))
        if not isinstance(found["loss"], float) or not math.isclose(found["loss"], own["loss"], rel_tol=1e-4):
            judge_loss(grade, f"{where}, rank {rank}", found["loss"], own, rank)


def judge_loss(grade, where, found, own, rank):
    text = f"{where}: you returned {found!r}; the mean over all samples is {own['loss']:.6f}"
    if isinstance(found, float):
        if math.isclose(found, own["losses"][rank], rel_tol=1e-4):
            grade.reject("own-loss", f"{text}, and the mean over this rank's samples is {own['losses'][rank]:.6f}.")
        if math.isclose(found, sum(own["losses"]), rel_tol=1e-4):
            grade.reject("own-loss", f"{text}. Your value is the sum of the ranks' losses.")
    grade.reject("unknown", f"{text}.")


BELIEFS = {
    "never-steps": "The weights are the same as before the step.",
    "sum-is-average": "That step used the sum of the ranks' gradients.",
    "not-averaged": "That step used only the gradient of this rank's samples.",
    "gradients-add-up": "That step used this batch's gradient plus those of earlier steps.",
    "averages-weights": "They are the mean, over the ranks, of the weights after each rank's own step.",
    "weights-rounded": "All weights are bf16 numbers, stored as float32.",
}


def explain(grade, where, step, rank, weights, expected, case, size):
    own = expected["own"][step]["weights"]
    gap = largest_difference(weights, own)
    says = f"{where}: the weights differ by up to {gap:.2g} from those of one process that has all samples."
    if all(torch.equal(p, p.bfloat16().float()) for p in weights):
        grade.reject("weights-rounded", f"{says} {BELIEFS['weights-rounded']}")
    for id in ("never-steps", "sum-is-average", "gradients-add-up"):
        if close(weights, expected[id][step]["weights"]):
            grade.reject(id, f"{says} {BELIEFS[id]}")
    if close(weights, alone(case, rank)[step]["weights"]):
        grade.reject("not-averaged", f"{says} {BELIEFS['not-averaged']}")
    if step == 0 and close(weights, averaged(case, size)):
        grade.reject("averages-weights", f"{says} {BELIEFS['averages-weights']}")
    if gap > 100:
        grade.reject("scaled-not-unscaled", f"{says} The update was {ratio(weights, own, case):,.0f} times too large.")
    grade.reject("unknown", says)


def ratio(weights, own, case) -> float:
    start = list(make_model(case["seed"]).parameters())
    return largest_difference(weights, start) / largest_difference(own, start)


def close(found, expected) -> bool:
    return all(torch.allclose(a, b, rtol=2e-4, atol=2e-5) for a, b in zip(found, expected, strict=True))


def oracle(case, size):
    """Run the steps for all ranks in one process, rightly and under each misconception."""
    found = {"own": run(case, size, torch.bfloat16, "mean")}
    for id in ("never-steps", "sum-is-average", "gradients-add-up"):
        found[id] = run(case, size, torch.bfloat16, id)
    return found


def alone(case, rank):
    return run(case, 1, torch.bfloat16, "mean", first=rank)


def averaged(case, size):
    """Return the weights after the first step if each rank steps alone and the weights are then averaged."""
    ranks = [alone(case, rank)[0]["weights"] for rank in range(size)]
    return [torch.stack(same).mean(0) for same in zip(*ranks, strict=True)]


def run(case, size, dtype, way, first=0):
    model = make_model(case["seed"])
    optimizer, steps = make_optimizer(case["optimizer"], model), []
    kept = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(STEPS):
        losses, gradients = [], []
        for rank in range(first, first + size):
            inputs, targets = make_batch(case["seed"], step, rank, case["samples"])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                outputs = model(inputs)
            loss = squares(outputs.float(), targets)
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
            losses.append(loss.item())
        for p, before, *grads in zip(model.parameters(), kept, *gradients, strict=True):
            p.grad = combine(grads, way)
            if way == "gradients-add-up":
                p.grad = (p.grad * size + before) / size  # each rank adds its own gradient to the last mean
                before.copy_(p.grad * size)
        if way != "never-steps":
            optimizer.step()
        weights = [p.detach().clone() for p in model.parameters()]
        steps.append({"loss": sum(losses) / size, "losses": losses, "weights": weights})
    return steps


def combine(gradients, way):
    if way == "reduced in bf16":
        total = gradients[0].bfloat16()
        for gradient in gradients[1:]:
            total = total + gradient.bfloat16()
        return total.float() / len(gradients)
    total = torch.stack(gradients).sum(0)
    return total if way == "sum-is-average" else total / len(gradients)
