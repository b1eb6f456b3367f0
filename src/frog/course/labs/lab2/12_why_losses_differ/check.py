"""Every rank's losses computed here; the cause is what was done to the run."""

import random

import torch
from ranks import loss_of, make_batch, make_model

from frog.grader.grade import Grade

NAMES = ("own", "same", "cause")


def draw_cases(seed, size):
    draw = random.Random(seed)
    healthy = {"drifted": None, "drift": 0.0, "split": True, "cause": "batches", "is": "a healthy run"}
    drifted = {"drifted": draw.randrange(1, size), "drift": 3e-4, "cause": "weights", "is": "one rank has drifted"}
    unsplit = {"split": False, "cause": "nothing", "is": "no sampler"}
    both = {"split": False, "is": "no sampler, and one rank has drifted"}
    cases = [healthy, healthy | drifted, healthy | unsplit, healthy | drifted | both]
    return [drawn(case, seed % 100_000 + 1000 * n, size) for n, case in enumerate(cases)]


def drawn(case, seed, size):
    """The case with a seed for which a drift shows in the loss, and not in its first four digits."""
    for number in range(seed, seed + 1000):
        same = expected_of(case | {"seed": number}, size)["same"]
        if not case["drift"] or 5e-6 < max(same) - min(same) < 4e-5:
            return case | {"seed": number}
    raise AssertionError("no seed for which a drift shows")


def check(grade: Grade) -> None:
    for size in (2, 3):
        cases = draw_cases(grade.seed + size, size)
        world = grade.world(size, {"cases": cases})
        found = [[rank[n] for rank in world.values] for n in range(len(cases))]
        for case, ranks in zip(cases, found, strict=True):
            check_untouched(grade, case, ranks)
        lists = [expected_of(case, size) for case in cases]
        for case, ranks, expected in zip(cases, found, lists, strict=True):
            check_lists(grade, case, ranks, expected)
        for case, ranks, expected in zip(cases, found, lists, strict=True):
            check_cause(grade, case, ranks, expected)
        if size == 2:
            for case, expected in zip(cases[:3], lists, strict=False):
                grade.measured(case["is"], f"own batch {shown(expected['own'])}; same batch {shown(expected['same'])}")


def expected_of(case, size):
    models = [make_model(case, rank) for rank in range(size)]
    batches = [make_batch(case, rank) for rank in range(size)]
    with torch.no_grad():
        own = [loss_of(model, batch).item() for model, batch in zip(models, batches, strict=True)]
        return {"own": own, "same": [loss_of(model, batches[0]).item() for model in models]}


def shown(losses):
    return " and ".join(f"{loss:.6f}" for loss in losses)


def check_untouched(grade, case, ranks):
    for rank, value in enumerate(ranks):
        before = list(make_model(case, rank).parameters())
        off = max((a - b).abs().max().item() for a, b in zip(value["weights"], before, strict=True))
        if off:
            grade.reject("repairs-while-it-looks", f"{case['is']}: afterwards rank {rank}'s weights are {off:.1e} off.")


def check_lists(grade, case, ranks, expected):
    for rank, value in enumerate(ranks):
        answer = value["answer"]
        if not isinstance(answer, dict) or set(answer) != set(NAMES):
            told = ranks[0]["answer"]
            if rank and isinstance(told, dict) and set(told) == set(NAMES):
                grade.reject(
                    "only-rank-0-knows", f"{case['is']}: rank 0 has an answer, rank {rank} returned {answer!r}."
                )
            grade.reject("unknown", f"{case['is']}: rank {rank} returned {answer!r}, expected own, same and cause.")
        for name in ("own", "same"):
            if not equal(answer[name], expected[name]):
                explain(grade, case, rank, name, answer, expected, value)


def equal(found, expected):
    """To the digits of float32: a list of floats, or of tensors."""
    try:
        found = [float(loss) for loss in found]
    except (TypeError, ValueError):
        return False
    return len(found) == len(expected) and torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-6)


def explain(grade, case, rank, name, answer, expected, value):
    says = f"{case['is']}: on rank {rank}, {name!r} is {words(answer[name])}; it was {shown(expected[name])}."
    size = len(expected["own"])
    mean = sum(expected["own"]) / size
    if equal(answer[name], [mean] * size):
        grade.reject("averages-away", f"{says} That is the mean, {size} times.")
    if name == "same" and equal(answer["same"], expected["own"]):
        grade.reject("no-experiment", says)
    if name == "own" and equal(answer["own"], expected["same"]):
        grade.reject("overwrites-its-batch", f"{says} Those are losses of rank 0's batch.")
    if rank and isinstance(answer[name], list) and any(loss is None for loss in answer[name]):
        grade.reject("only-rank-0-knows", says)
    grade.reject("unknown", says)


def words(losses):
    try:
        return shown([float(loss) for loss in losses])
    except (TypeError, ValueError):
        return repr(losses)


def check_cause(grade, case, ranks, expected):
    for rank, value in enumerate(ranks):
        said = value["answer"]["cause"]
        if said == case["cause"]:
            continue
        says = (
            f"{case['is']}: rank {rank} says {said!r}, and it was {case['cause']!r}. Own batches "
            f"{shown(expected['own'])}, same batch {shown(expected['same'])}."
        )
        if rank == 0 and said == "nothing" and all(other["answer"]["cause"] == case["cause"] for other in ranks[1:]):
            grade.reject("compares-with-rank-0", f"{says} The other ranks say so.")
        if case["cause"] == "weights" and said in ("batches", "nothing"):
            grade.reject("close-is-equal", says)
        if case["cause"] == "nothing" and said == "batches":
            grade.reject("equal-is-healthy", says)
        grade.reject("unknown", says)
