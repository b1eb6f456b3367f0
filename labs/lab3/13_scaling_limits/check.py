"""Compare times, efficiencies and limits with our own arithmetic; then measure a ring of real messages."""

import random
from collections.abc import Callable
from math import isclose
from typing import Any

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

Case = dict[str, Any]
RING = {"gradient_mib": 1 / 8, "num_ranks": 4, "link": {"rate_gbit_per_s": 0.1, "delay_us": 3000.0}}
"""Parts of 32 KiB, which fit into a socket's buffer, so no sender waits for a reader. 6 x (3 ms + 2.6 ms) = 34 ms."""


def ring_s(
    case: Case, n: int, *, mega: float = 2**20, giga: float = 1e9, bits: float = 8, micro: float = 1e-6
) -> float:
    """Return the time of 2(n-1) steps, each a delay and a part."""
    delay_s, send_s = parts(case, n, mega=mega, giga=giga, bits=bits, micro=micro)
    return 2 * (n - 1) * (delay_s + send_s)


def parts(
    case: Case, n: int, *, mega: float = 2**20, giga: float = 1e9, bits: float = 8, micro: float = 1e-6
) -> tuple[float, float]:
    """Return the delay of a ring step, and the transfer time of a part."""
    link = case["link"]
    sent = case["job"]["gradient_mib"] * mega * bits / n / (link["rate_gbit_per_s"] * giga)
    return link["delay_us"] * micro, sent


TIMES: dict[str, list[Callable[[Case, int], float]]] = {
    "bits-are-bytes": [lambda c, n: ring_s(c, n, bits=1), lambda c, n: ring_s(c, n, bits=1 / 8)],
    "one-kind-of-mega": [
        lambda c, n: ring_s(c, n, mega=1e6),
        lambda c, n: ring_s(c, n, giga=2**30),
        lambda c, n: ring_s(c, n, mega=1e6, giga=2**30),
    ],
    "latency-once": [
        lambda c, n: ring_s(c, n, micro=0),
        lambda c, n: ring_s(c, n, micro=0) + (n > 1) * parts(c, n)[0],
        lambda c, n: ring_s(c, n, micro=0) + 2 * (n > 1) * parts(c, n)[0],
        lambda c, n: ring_s(c, n, micro=0) + parts(c, n)[0],
    ],
    "half-the-ring": [
        lambda c, n: ring_s(c, n) / 2,
        lambda c, n: ring_s(c, n) - (n - 1) * parts(c, n)[0],
        lambda c, n: ring_s(c, n) - (n - 1) * parts(c, n)[1],
    ],
    "n-steps": [
        lambda c, n: 2 * n * sum(parts(c, n)),
        lambda c, n: n * sum(parts(c, n)),
        lambda c, n: 2 * (n - 1) * parts(c, n)[0] + 2 * n * parts(c, n)[1],
        lambda c, n: (n > 1) * 2 * n * sum(parts(c, n)),
    ],
    "whole-each-step": [lambda c, n: 2 * (n - 1) * (parts(c, n)[0] + parts(c, 1)[1])],
    "delay-in-ms": [
        lambda c, n: ring_s(c, n, micro=1e-3),
        lambda c, n: ring_s(c, n, micro=1e-9),
        lambda c, n: ring_s(c, n, micro=1),
    ],
}


def step(case: Case, n: int, overlap: bool) -> float:
    """Compute the step time by its definition."""
    job = case["job"]
    ring = ring_s(case, n)
    return job["forward_s"] + (max(job["backward_s"], ring) if overlap else job["backward_s"] + ring)


def efficiency(case: Case, n: int, overlap: bool) -> float:
    return step(case, 1, overlap) / step(case, n, overlap)


def both(case: Case) -> float:
    return float(case["job"]["forward_s"] + case["job"]["backward_s"])


STEPS: dict[str, Callable[[Case, int, bool], float]] = {
    "overlap-is-free": lambda c, n, o: both(c) if o else step(c, n, o),
    "overlaps-forward": lambda c, n, o: max(both(c), ring_s(c, n)) if o else step(c, n, o),
    "never-overlaps": lambda c, n, o: step(c, n, False),
}
EFFICIENCIES: dict[str, Callable[[Case, int, bool], float]] = {
    "speedup": lambda c, n, o: n * efficiency(c, n, o),
    "turned-round": lambda c, n, o: 1 / efficiency(c, n, o),
}


def check(grade: Grade) -> None:
    """Check links and jobs that are new on each check: some limited by delay, some by rate, some not limited."""
    draw = random.Random(grade.seed)
    cases = [make_case(draw, kind) for kind in ("rate", "delay", "both", "rate", "delay", "both", "fast")]
    cases.append({**make_case(draw, "both"), "at_least": 1.0})
    found = grade.call({"cases": cases, "ring": RING}, seconds=8.0).values[0]
    sizes = [(case, n) for case in cases for n in case["sizes"]]
    check_times(grade, sizes, [time for times in found["times"] for time in times])
    asked = [(case, n, overlap) for case, n in sizes for overlap in (False, True)]
    pairs = [pair for pairs in found["steps"] for pair in pairs]
    check_values(grade, "step_s", STEPS, step, asked, [pair[0] for pair in pairs])
    check_values(grade, "efficiency", EFFICIENCIES, efficiency, asked, [pair[1] for pair in pairs])
    check_worlds(grade, cases, found["worlds"])
    predicted, took = found["ring"]
    said = f"your all_reduce_s gives {predicted * 1e3:.1f} ms, measured {took * 1e3:.1f} ms"
    grade.measured("times and efficiencies", str(len(sizes) + 2 * len(asked)))
    grade.measured("ring of 4 over links slowed to 0.1 Gbit/s and 3 ms", said)
    grade.predicted("one-all-reduce", 2 * 7 / 8 * 2e9 * 8 / 100e9)


def make_case(draw: random.Random, kind: str) -> Case:
    """Draw a job and a link whose rate or delay matters."""
    rate = draw.uniform(1, 10) if kind != "delay" else draw.uniform(100, 400)
    delay = draw.uniform(20, 200) if kind != "rate" else draw.uniform(1, 5)
    mib = draw.uniform(50, 900) if kind != "delay" else draw.uniform(0.5, 5)
    rate = rate * 1e4 if kind == "fast" else rate
    case = {"link": {"rate_gbit_per_s": rate, "delay_us": 1e-3 if kind == "fast" else delay}, "sizes": [1, 2, 3]}
    case["sizes"] += [draw.randint(4, 20), draw.randint(21, 2000)]
    ring = 2 * 2**23 * mib / (rate * 1e9) + 200 * delay * 1e-6
    job = {
        "forward_s": ring * draw.uniform(0.2, 0.6),
        "backward_s": ring * draw.uniform(0.55, 0.95),
        "gradient_mib": mib,
    }
    return {**case, "job": job, "at_least": draw.uniform(0.55, 0.9), "most": draw.randint(300, 700)}


def check_times(grade: Grade, asked: list[tuple[Case, int]], found: list[float]) -> None:
    """Check all_reduce_s."""
    right = [ring_s(case, n) for case, n in asked]
    if (first := first_wrong(grade, "all_reduce_s", found, right)) is None:
        return
    case, n = asked[first]
    gave, expected = distinct_texts(found[first], right[first])
    link = case["link"]
    observed = (
        f"{case['job']['gradient_mib']:.1f} MiB, {count(n, 'rank')}, {link['rate_gbit_per_s']:.2f} Gbit/s and "
        f"{link['delay_us']:.1f} us: all_reduce_s returned {gave} s, expected {expected} s."
    )
    for belief, ways in TIMES.items():
        if any(same(found, [way(*each) for each in asked]) for way in ways):
            grade.reject(belief, observed)
    grade.reject("unknown", observed)


def check_values(
    grade: Grade,
    name: str,
    beliefs: dict[str, Callable[[Case, int, bool], float]],
    oracle: Callable[[Case, int, bool], float],
    asked: list[tuple[Case, int, bool]],
    found: list[float],
) -> None:
    """Check step_s or efficiency."""
    right = [oracle(*each) for each in asked]
    if (first := first_wrong(grade, name, found, right)) is None:
        return
    case, n, overlap = asked[first]
    job = case["job"]
    gave, expected = distinct_texts(found[first], right[first])
    observed = (
        f"forward {job['forward_s']:.4g} s, backward {job['backward_s']:.4g} s, all-reduce {ring_s(case, n):.4g} s "
        f"({count(n, 'rank')}, overlap={overlap}): {name} returned {gave}, expected {expected}."
    )
    for belief, way in beliefs.items():
        if same(found, [way(*each) for each in asked]):
            grade.reject(belief, observed)
    grade.reject("unknown", observed)


def first_wrong(grade: Grade, name: str, found: list[Any], right: list[float]) -> int | None:
    """Return the index of the first number that differs by at least 1 %, or else at all."""
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int | float):
            grade.reject("unknown", f"{name} returned {value!r}, which is not a number.")
    pairs = enumerate(zip(found, right, strict=True))
    wrong = [(i, pair) for i, pair in pairs if not isclose(*pair, rel_tol=1e-6, abs_tol=1e-12)]
    plain = [(i, pair) for i, pair in wrong if not isclose(*pair, rel_tol=0.01)]
    return (plain or wrong)[0][0] if wrong else None


def same(found: list[float], other: list[float]) -> bool:
    return all(isclose(*pair, rel_tol=1e-6, abs_tol=1e-12) for pair in zip(found, other, strict=True))


def check_worlds(grade: Grade, cases: list[Case], found: list[list[Any]]) -> None:
    """Check largest_world, except where several worlds have almost equal efficiencies."""
    asked = [
        (case, overlap, n)
        for case, pair in zip(cases, found, strict=True)
        for overlap, n in enumerate(pair)
        if case["at_least"] < 1 or not overlap  # with overlap many worlds reach 1 within rounding
    ]
    limits = [limit(case, bool(overlap)) for case, overlap, _ in asked]
    wrong = [i for i, ((_, _, n), right) in enumerate(zip(asked, limits, strict=True)) if n != right]
    if not wrong:
        return
    case, overlap, n = asked[wrong[0]]
    right = limits[wrong[0]]
    observed = (
        f"At least {case['at_least']:.3f}, at most {case['most']} ranks, overlap={bool(overlap)}: "
        f"largest_world returned {n}, expected {right}, with efficiency {efficiency(case, right, bool(overlap)):.4f}."
    )
    others = [(n, right) for (case, _, n), right in zip(asked, limits, strict=True) if case["at_least"] < 1]
    if all(n == right for n, right in others):
        grade.reject("more-than", f"{observed} Where no efficiency equals the lower limit, all worlds are right.")
    if all(n in (right, right + 1) for (_, _, n), right in zip(asked, limits, strict=True)):
        grade.reject("first-that-fails", observed)
    if all(n == 2 ** (right.bit_length() - 1) for (_, _, n), right in zip(asked, limits, strict=True)):
        grade.reject("only-powers-of-two", observed)
    grade.reject("unknown", observed)


def limit(case: Case, overlap: bool) -> int:
    """Find the largest world by trying all."""
    return max(n for n in range(1, case["most"] + 1) if efficiency(case, n, overlap) >= case["at_least"])
