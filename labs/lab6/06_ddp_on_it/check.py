"""Let `frog collectives check` grade the library as a peer; then compare a training with DDP on it with one process."""

import json
import random
import re
import sys
from typing import Any, NoReturn

import torch
from ranks import RATE, STEPS, loss_of, make_model

from frog.learn.grader.grade import Grade, Rejected
from frog.learn.grader.outcome import Failure, World

Case = dict[str, Any]
SIZE = 3
CHECKS = ("results", "operations", "connections", "ring", "large", "short-reads", "killed-peer", "cut-link")
DRIVER = """
import sys

from frog.cli import main

sys.exit(main(sys.argv[1:]))
"""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    case = {"seed": draw.randrange(1 << 20), "samples": draw.choice([5, 7, 9])}
    found = check_peers(grade, draw.randrange(1_000_000))
    world = grade.world(SIZE, case, work="train", join=False, seconds=8.0)
    largest = check_training(grade, world, case)
    moved = next(text for text in found["ring"] if "the busiest rank moved" in text)
    for name in ("results", "ring", "large", "killed-peer"):
        grade.measured(f"frog collectives check, {name}", found[name][-1])
    grade.measured("3 steps of DDP on 3 ranks, compared with one process", f"largest difference {largest:.1e}")
    grade.predicted("moved", float(re.findall(r"moved ([\d,]+) bytes", moved)[0].replace(",", "")))
    page = "docs/measure/collectives.md"
    grade.note(f"Another language? frog collectives check --peer COMMAND grades any program: {page}.")


# ---- frog collectives check ------------------------------------------------------------------------------------------


def check_peers(grade: Grade, seed: int) -> dict[str, list[str]]:
    """Return what each check measured; reject with the first finding."""
    only = [word for name in CHECKS for word in ("--only", name)]
    words = [sys.executable, "driver.py", "collectives", "check", "--peer", f"{sys.executable} peer.py", *only]
    words += ["--operations", "all_reduce,broadcast", "--world", str(SIZE), "--seed", str(seed)]
    words += ["--exit-first", "--json"]
    done = grade.program(words, files={"driver.py": DRIVER}, seconds=60.0, wall_s=300.0, fork=True)
    grade.output = done.err  # the table below is not the learner's output
    try:
        checks = json.loads(done.out)["checks"]
    except (ValueError, KeyError, TypeError):
        grade.reject("unknown", f"frog collectives check ended with exit code {done.code}. {done.err[-500:]}")
    for one in checks:
        if one["status"] == "rejected":
            explain_finding(grade, one)
    return {one["check"]: one["measured"] or [""] for one in checks}


def explain_finding(grade: Grade, one: Case) -> NoReturn:
    """Reject with the finding's misconception if the manifest has it, or else with the finding's own text."""
    text = f"frog collectives check, {one['check']}: {one['observed']}"
    if "NotImplementedError: fill in" in text:
        raise Rejected(Failure("raised", text, 0, is_unsolved=True))
    if grade.exercise.misconception(one["finding"]):
        grade.reject(one["finding"], text)
    grade.reject("unknown", f"{text} A misconception behind this: {one['belief']}. {one['question']}")


# ---- DDP -------------------------------------------------------------------------------------------------------------


def check_training(grade: Grade, world: World, case: Case) -> float:
    """Compare each step's gradients, and the final weights, with one process that has all samples."""
    model, largest = make_model(case["seed"]), 0.0
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, case, step, list(range(SIZE))).backward()
        expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        for rank, value in enumerate(world.values):
            found = value["gradients"][step]
            for name, gradient in expected.items():
                what = f"DDP on your library, step {step + 1}, rank {rank}: the gradient of {name}"
                grade.compare(found[name], gradient, what, rtol=1e-4, atol=1e-6)
                largest = max(largest, (found[name] - gradient).abs().max().item())
        with torch.no_grad():
            for name in expected:
                p = model.get_parameter(name)
                p -= RATE * p.grad
    for rank, value in enumerate(world.values):
        for name, p in model.named_parameters():
            what = f"DDP on your library, after {STEPS} steps, rank {rank}: the weights of {name}"
            grade.compare(value["weights"][name], p.detach(), what, rtol=1e-4, atol=1e-6)
            if not torch.equal(value["weights"][name], world.values[0]["weights"][name]):
                grade.reject("unknown", f"{what} are not those of rank 0, bit for bit.")
    return largest
