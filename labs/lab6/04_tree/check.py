"""Read from the sums which ranks counted, and compare the time on simulated networks with the best of both ways."""

import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from ranks import BASE, inputs_of
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Case = dict[str, Any]
SIZES = (8, 16, 4, 2, 1, 3, 5, 6, 7, 12)
TCP_SIZE = 3
SLACK = 1.1
WAYS = ("tree_all_reduce", "ring_all_reduce", "all_reduce")
PREDICTED_SIZE = 16
NETWORKS = [
    (4, 1e-3, 1e-9, 20_000), (4, 1e-5, 1e-8, 20_000), (7, 1e-4, 1e-9, 120), (7, 1e-4, 1e-9, 200_000),
    (7, 1e-3, 1e-9, 60_000), (12, 1e-5, 1e-9, 30_000), (12, 1e-4, 1e-9, 30_000), (3, 1e-5, 1e-9, 150_000),
    (4, 2e-5, 1e-9, 3_000), (12, 1e-4, 4e-9, 9_000),
]  # fmt: skip
"""Ranks, alpha, beta, and about how many float32 elements. Each rule of RULES chooses wrongly for some of them."""


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    counted = [run(draw, size, draw.randint(1, 9)) for size in SIZES] + [run(draw, size, 0) for size in (4, 5)]
    large = [run(draw, size, draw.randint(2000, 3000), values="random") for size in (4, 5, 8)]
    chosen = [
        run(draw, size, numel + draw.randint(0, numel // 20), values="random", way=way, alpha_s=alpha, beta_s=beta)
        for size, alpha, beta, numel in NETWORKS
        for way in WAYS
    ]
    seed_alike(chosen)
    small = run(draw, PREDICTED_SIZE, 1)
    runs = [*counted, *large, *chosen, small, small | {"way": "ring_all_reduce"}]
    found = grade.call({"runs": runs}, seconds=8.0).values[0]
    pairs = list(zip(runs, found, strict=True))
    for case, seen in pairs[: len(counted) + len(large)]:
        check_sum(grade, case, seen)
    for case, seen in pairs[: len(counted) + len(large)]:
        check_steps(grade, case, seen)
    check_choice(grade, pairs[len(counted) + len(large) : -2])
    check_tcp(grade, {"seed": grade.seed % 1_000_003, "values": "counted", "numel": 5})
    tree, ring = (round(seen["time_s"] / small["alpha_s"]) for seen in found[-2:])
    grade.measured("one number on 16 ranks", f"{tree} steps with your tree, {ring} with the ring")
    grade.measured("worlds", f"{', '.join(map(str, sorted(SIZES)))}: exact, the same bits on all ranks")
    grade.measured("choices", f"the faster way on {len(NETWORKS)} of {len(NETWORKS)} networks")
    grade.predicted("ring-steps", ring)


def run(
    draw: random.Random,
    size: int,
    numel: int,
    *,
    values: str = "counted",
    way: str = "tree_all_reduce",
    alpha_s: float = 1e-3,
    beta_s: float = 1e-9,
) -> Case:
    about = {"values": values, "way": way, "alpha_s": alpha_s, "beta_s": beta_s}
    return {"size": size, "numel": numel, "seed": draw.randrange(1 << 30), **about}


def seed_alike(chosen: list[Case]) -> None:
    """Give the three runs on a network the same length."""
    for at in range(0, len(chosen), len(WAYS)):
        for case in chosen[at : at + len(WAYS)]:
            case["numel"] = chosen[at]["numel"]


# ---- the sum ---------------------------------------------------------------------------------------------------------


def check_sum(grade: Grade, case: Case, seen: Case) -> None:
    says = f"World of {case['size']}, {count(case['numel'], 'element')}"
    if case["way"] != "tree_all_reduce":
        says = f"{says}, {case['way']}"
    if seen["stuck"]:
        explain_stuck(grade, says, case, seen)
    if seen["error"]:
        if "no connection to rank" in seen["error"] and case["size"] & (case["size"] - 1):
            grade.reject("power-of-two", f"{says}: {seen['error']}. In a world of 8 it worked.")
        grade.reject("unknown", f"{says}: a rank raised {seen['error']}.")
    if not seen["values"]:
        return
    expected = torch.stack(inputs_of(case, case["size"])).sum(0)
    for rank, value in enumerate(seen["values"]):
        if case["values"] == "random":
            grade.compare(value, expected, f"{says}: the sum on rank {rank}", rtol=1e-4, atol=1e-5)
        elif not torch.equal(value, expected):
            explain(grade, says, case, seen["values"])
    for rank, value in enumerate(seen["values"]):
        if not torch.equal(value, seen["values"][0]):
            num, gap = int((value != seen["values"][0]).sum()), (value - seen["values"][0]).abs().max()
            text = f"{says}: {num} of the sums on rank {rank} differ from rank 0's, by up to {gap:.1e}"
            grade.reject("own-order", f"{text}. Both are right up to rounding.")


def explain_stuck(grade: Grade, says: str, case: Case, seen: Case) -> NoReturn:
    waits = "; ".join(f"rank {rank} waits for {what}" for rank, what in seen["waiting"])
    pairs = {(rank, int(what.split()[1])) for rank, what in seen["waiting"] if " to receive " in what}
    both = [(a, b) for a, b in pairs if (b, a) in pairs]
    if both:
        grade.reject("both-send-first", f"{says}: {waits}. The system's buffers are full.")
    grade.reject("unknown", f"{says}: {waits}.")


def counts_in(value: Tensor, size: int) -> list[int]:
    """Return how often each rank counts in the first element of a sum."""
    total = int(value[0])
    return [total // BASE**rank % BASE for rank in range(size)]


def explain(grade: Grade, says: str, case: Case, values: list[Tensor]) -> NoReturn:
    """Reject sums in which a rank does not count exactly once."""
    size = case["size"]
    table = [counts_in(value, size) for value in values]
    right = [counts == [1] * size for counts in table]
    own = [[int(rank == other) for other in range(size)] for rank in range(size)]
    if table == own:
        grade.reject("result-dropped", f"{says}: no rank's tensor has changed.")
    rank = right.index(False)
    missing = [other for other in range(size) if table[rank][other] == 0]
    twice = [other for other in range(size) if table[rank][other] > 1]
    says = f"{says}: in the sum on rank {rank}"
    if twice:
        often = table[rank][twice[0]]
        grade.reject("counted-twice", f"{says}, {ranks_of(twice)} {counted(twice)} {often} times.")
    power = 1 << (size.bit_length() - 1)
    wrong = [other for other in range(size) if not right[other]]
    text = f"{says}, {ranks_of(missing)} {counted(missing)} 0 times"
    if wrong == list(range(1, size)) and right[0] and size > 2:
        grade.reject("only-the-root-knows", f"{text}. Rank 0's sum is right, and no other.")
    extra = size - power
    others = [row for row, one in zip(table, own, strict=True) if row != one]
    if extra and len(wrong) == extra and all(table[other] == own[other] for other in wrong):
        still = f"{ranks_of(wrong).capitalize()} still {has(wrong)} its own numbers"
        grade.reject("extra-ranks-get-nothing", f"{text}. {still}.")
    if extra and len(missing) == extra and not any(row[other] for row in others for other in missing):
        grade.reject("extra-ranks-give-nothing", f"{text}, and neither in any other rank's.")
    if extra:
        num = sum(right)
        whole = f"{count(num, 'rank')} of {size} {'has' if num == 1 else 'have'} the whole sum"
        grade.reject("partner-that-is-missing", f"{text}. {whole}.")
    grade.reject("unknown", f"{text}.")


def ranks_of(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def counted(ranks: list[int]) -> str:
    return "count" if len(ranks) > 1 else "counts"


def has(ranks: list[int]) -> str:
    return "have each" if len(ranks) > 1 else "has"


def check_steps(grade: Grade, case: Case, seen: Case) -> None:
    """Compare the time with that of 2 log2(n) messages."""
    size = case["size"]
    step_s = case["alpha_s"] + case["numel"] * (8 if case["values"] == "counted" else 4) * case["beta_s"]
    steps, most = seen["time_s"] / step_s, 2 * (size - 1).bit_length()
    if size > 4 and steps > SLACK * most:
        grade.reject(
            "steps-grow-with-ranks",
            f"World of {size}, {count(case['numel'], 'element')}: the sums are right, after the time of {steps:.0f} "
            f"messages one after the other. The docstring allows {most}; n - 1 is {size - 1}.",
        )


# ---- the choice ------------------------------------------------------------------------------------------------------


def by_formula(case: Case, element_bytes: int = 4, for_surplus: int = 2) -> str:
    size, num_bytes, alpha_s, beta_s = case["size"], case["numel"] * element_bytes, case["alpha_s"], case["beta_s"]
    steps = size.bit_length() - 1 + for_surplus * (size & (size - 1) != 0)
    tree_s = steps * (alpha_s + num_bytes * beta_s)
    ring_s = 2 * (size - 1) * (alpha_s + num_bytes / size * beta_s)
    return "tree" if tree_s <= ring_s else "ring"


def other(way: str) -> str:
    return "ring" if way == "tree" else "tree"


RULES: list[tuple[str, str, Callable[[Case], str]]] = [
    ("always-the-tree", "It took the tree on every network.", lambda case: "tree"),
    ("always-the-ring", "It took the ring on every network.", lambda case: "ring"),
    ("elements-are-bytes", "Its choices are those for a quarter of the bytes.", lambda case: by_formula(case, 1)),
    (
        "surplus-takes-no-time",
        "Its choices are those without the two steps of the ranks that are too many for a power of two.",
        lambda case: by_formula(case, for_surplus=0),
    ),
    ("the-other-way-around", "It took the slower way each time.", lambda case: other(by_formula(case))),
]  # fmt: skip
"""Rules of choice, what to say about them, and what they choose."""


def check_choice(grade: Grade, pairs: list[tuple[Case, Case]]) -> None:
    """Compare the time of all_reduce with those of both ways, measured on the same network."""
    cases, choices, wrong = [], [], []
    for at in range(0, len(pairs), len(WAYS)):
        (case, tree), (_, ring), (both, taken) = pairs[at : at + len(WAYS)]
        check_sum(grade, both, taken)
        tree_s, ring_s, took_s = tree["time_s"], ring["time_s"], taken["time_s"]
        cases.append(case)
        choices.append("tree" if abs(took_s - tree_s) < abs(took_s - ring_s) else "ring")
        if took_s > SLACK * min(tree_s, ring_s):
            wrong.append((case, tree_s, ring_s, took_s))
    if not wrong:
        return
    case, tree_s, ring_s, took_s = max(wrong, key=lambda one: one[3] / min(one[1:3]))
    says = (
        f"World of {case['size']}, {case['numel'] * 4:,} bytes, {case['alpha_s'] * 1e3:g} ms a message and "
        f"{1e-9 / case['beta_s']:g} GB/s: your tree takes {tree_s * 1e3:.2f} ms, the ring {ring_s * 1e3:.2f} ms, and "
        f"all_reduce took {took_s * 1e3:.2f} ms. It chose well on {len(cases) - len(wrong)} of {len(cases)} networks."
    )
    for id, text, rule in RULES:
        if all(rule(one) == choice for one, choice in zip(cases, choices, strict=True)):
            grade.reject(id, f"{says} {text}")
    trees = [one["numel"] * 4 for one, choice in zip(cases, choices, strict=True) if choice == "tree"]
    rings = [one["numel"] * 4 for one, choice in zip(cases, choices, strict=True) if choice == "ring"]
    if trees and rings and max(trees) < min(rings):
        text = (
            f"It took the tree for up to {max(trees):,} bytes, and the ring from {min(rings):,} on, on every network."
        )
        grade.reject("one-threshold", f"{says} {text}")
    grade.reject("unknown", says)


def check_tcp(grade: Grade, case: Case) -> None:
    world = grade.world(TCP_SIZE, case, work="over_tcp")
    expected = torch.stack(inputs_of(case, TCP_SIZE)).sum(0)
    for rank, value in enumerate(world.values):
        grade.compare(value, expected, f"over TCP, world of {TCP_SIZE}: the sum on rank {rank}", rtol=0.0, atol=0.0)
