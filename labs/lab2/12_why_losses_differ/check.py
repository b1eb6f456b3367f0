"""Compute every rank's losses here, and compare the cause with the change made to the run."""

import random

import torch
from ranks import loss_of, make_batch, make_model

from frog.learn.grader.grade import Grade

NAMES = ("own", "same", "cause")


def draw_cases(seed, size):
    """Draw runs whose batches or weights differ on some rank; "is" describes the change made to a run."""
    draw = random.Random(seed)
    healthy = {"drifted": None, "drift": "", "batches": "split", "odd": None, "cause": "batches", "is": "a healthy run"}
    cases = [healthy]
    for rank in range(1, size):
        one = {"drifted": rank, "drift": "little", "cause": "weights"}
        cases.append(healthy | one | {"is": f"rank {rank} has drifted"})
    unsplit = {"batches": "same", "cause": "nothing", "is": "no sampler"}
    drifted = unsplit | {"drifted": draw.randrange(1, size), "drift": "little", "cause": "weights"}
    cases += [healthy | unsplit, healthy | drifted | {"is": DRIFTED_UNSPLIT}]
    for how, text in DRIFTS.items():
        cases.append(healthy | {"drifted": draw.randrange(1, size), "drift": how, "cause": "weights", "is": text})
    for how, text in BATCHES.items():
        cases += [healthy | {"batches": how, "odd": odd, "is": text} for odd in {0, draw.randrange(1, size)}]
    return [drawn(case, seed % 100_000 + 1000 * n, size) for n, case in enumerate(cases)]


DRIFTS = {
    "embedding": "one rank's embedding has drifted",
    "much": "one rank's weights are far off",
    "swap": "two weights of one rank are swapped",
}
BATCHES = {
    "other": "one rank has a different batch from the others",
    "token": "one rank's batch has a different token at one position",
    "shuffled": "one rank has the others' tokens in a different order",
}
SUMS = {DRIFTS["swap"], BATCHES["shuffled"]}
DRIFTED_UNSPLIT = "no sampler, and one rank has drifted"


def drawn(case, seed, size):
    """Choose a seed for which the difference shows in the loss, but a small one not in its first four digits."""
    for number in range(seed, seed + 1000):
        case = case | {"seed": number}
        losses = expected_of(case, size)
        gap = {name: max(losses[name]) - min(losses[name]) for name in ("own", "same")}
        if case["drift"] == "little":
            shows = 5e-6 < gap["same"] < 4e-5
        elif case["drift"] == "embedding":
            shows = 2e-6 < gap["same"] < 8e-6
        elif case["drift"] == "swap":
            shows = gap["same"] > 4e-5 and has_equal_sums(case)
        elif case["batches"] == "token":
            shows = 5e-6 < gap["own"] < 4e-3
        else:
            least = 1e-2 if case["batches"] == "split" else 5e-6  # own batches differ in the second digit
            sums_show = case["batches"] in ("same", "shuffled") or has_another_sum(case, size)
            shows = case["cause"] != "batches" or (gap["own"] > least and sums_show)
        if shows:
            return case
    raise AssertionError("no seed for which the difference shows")


def has_equal_sums(case):
    """True if each parameter's sum is the same on the rank that has drifted, to the last bit."""
    sums = [[p.detach().sum().item() for p in make_model(case, rank).parameters()] for rank in (0, case["drifted"])]
    return sums[0] == sums[1]


def has_another_sum(case, size):
    """True if the sums of the ranks' tokens differ, so that only shuffled batches have equal ones."""
    return len({int(make_batch(case, rank).sum()) for rank in range(size)}) > 1


def check(grade: Grade) -> None:
    for size in (2, 4):
        cases = draw_cases(grade.seed + size, size)
        world = grade.world(size, {"cases": cases})
        found = [[rank[n] for rank in world.values] for n in range(len(cases))]
        for case, ranks in zip(cases, found, strict=True):
            check_untouched(grade, case, ranks)
        lists = [expected_of(case, size) for case in cases]
        for case, ranks, expected in zip(cases, found, lists, strict=True):
            check_lists(grade, case, ranks, expected)
        check_causes(grade, cases, found, lists)
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
        model, batch = make_model(case, rank), make_batch(case, rank)
        off = max((a - b).abs().max().item() for a, b in zip(value["weights"], model.parameters(), strict=True))
        if off:
            grade.reject(
                "repairs-while-it-looks", f"{case['is']}: your function changed rank {rank}'s weights by {off:.1e}."
            )
        if not torch.equal(value["batch"], batch):
            changed = int((value["batch"] != batch).sum())
            text = f"{case['is']}: your function changed {changed} of {batch.numel()} tokens of rank {rank}'s batch."
            grade.reject("overwrites-its-batch", text)
        if value["gradients"]:
            text = f"{case['is']}: afterwards {value['gradients']} weights of rank {rank} have a gradient."
            grade.reject("leaves-traces", f"{text} Before, their .grad was None.")
        if value["training"] != model.training:
            text = f"{case['is']}: afterwards model.training is {value['training']} on rank {rank}."
            grade.reject("leaves-traces", f"{text} Before, it was {model.training}.")


def check_lists(grade, case, ranks, expected):
    for rank, value in enumerate(ranks):
        answer = value["answer"]
        if not isinstance(answer, dict) or set(answer) != set(NAMES):
            told = ranks[0]["answer"]
            if rank and isinstance(told, dict) and set(told) == set(NAMES):
                grade.reject(
                    "only-rank-0-knows", f"{case['is']}: rank 0 has an answer, but rank {rank} returned {answer!r}."
                )
            grade.reject("unknown", f"{case['is']}: rank {rank} returned {answer!r}, expected own, same and cause.")
        for name in ("own", "same"):
            if not equal(answer[name], expected[name]):
                explain(grade, case, rank, name, answer, expected, value)


def equal(found, expected):
    """True if a list of floats, or of tensors, is equal within the digits of float32."""
    try:
        found = [float(loss) for loss in found]
    except (TypeError, ValueError):
        return False
    return len(found) == len(expected) and torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-6)


def explain(grade, case, rank, name, answer, expected, value):
    says = f"{case['is']}: on rank {rank}, {name!r} is {words(answer[name])}; it should be {shown(expected[name])}."
    size = len(expected["own"])
    mean = sum(expected["own"]) / size
    if equal(answer[name], [mean] * size):
        grade.reject("averages-away", f"{says} That is the mean, repeated {size} times.")
    if name == "same" and equal(answer["same"], expected["own"]):
        grade.reject("no-experiment", says)
    if name == "own" and equal(answer["own"], expected["same"]):
        grade.reject("overwrites-its-batch", f"{says} Those are the losses of rank 0's batch.")
    if rank and isinstance(answer[name], list) and any(loss is None for loss in answer[name]):
        grade.reject("only-rank-0-knows", says)
    grade.reject("unknown", says)


def words(losses):
    try:
        return shown([float(loss) for loss in losses])
    except (TypeError, ValueError):
        return repr(losses)


def check_causes(grade, cases, found, lists):
    said = [[rank["answer"]["cause"] for rank in ranks] for ranks in found]
    wrong = [n for n, case in enumerate(cases) if said[n] != [case["cause"]] * len(said[n])]
    if not wrong:
        return
    for n in wrong:
        if any(other != said[n][0] for other in said[n]):
            explain_ranks(grade, cases[n], said[n], lists[n])
    missed = {cases[n]["is"] for n in wrong}
    n, id = wrong[0], "unknown"
    by_rank = {case["is"] for case in cases if case["drift"] == "little" and case["batches"] == "split"}
    if missed & by_rank and by_rank - missed:
        id = "some-ranks-only"
    elif all(cases[n]["is"] in SUMS for n in wrong):
        id = "sum-hides"
    elif {*by_rank, DRIFTS["embedding"], DRIFTS["much"]} <= missed and DRIFTED_UNSPLIT not in missed:
        id = "batches-hide-weights"
    elif cases[n]["cause"] == "weights" and DRIFTS["much"] not in missed:
        id = "close-is-equal"
    elif cases[n]["cause"] == "weights" and DRIFTS["embedding"] not in missed:
        id = "some-speak-for-all"
    elif cases[n]["is"] == BATCHES["token"] and said[n][0] == "nothing":
        id = "close-is-equal"
    elif cases[n]["cause"] == "nothing" and said[n][0] == "batches":
        id = "equal-is-healthy"
    grade.reject(id, f"{sentence(cases[n], lists[n])} Your ranks say {said[n][0]!r}.")


def sentence(case, expected):
    text = f"{case['is']} (world of {len(expected['own'])}): the cause is {case['cause']!r}."
    return f"{text} Own batches {shown(expected['own'])}, same batch {shown(expected['same'])}."


def explain_ranks(grade, case, said, expected):
    """Explain answers that differ between ranks, by the rank with which each compares itself."""
    size, odd = len(said), case["drifted"] if case["cause"] == "weights" else case["odd"]
    right = {rank for rank, cause in enumerate(said) if cause == case["cause"]}
    id = "ranks-disagree"
    if right in ({odd}, set(range(1, size))) and 0 not in right:
        id = "compares-with-rank-0"
    elif odd is not None and size > 3 and right <= {odd, (odd + 1) % size, (odd - 1) % size}:
        id = "compares-neighbours"
    grade.reject(id, f"{sentence(case, expected)} Your ranks say {', '.join(map(repr, said))}.")
