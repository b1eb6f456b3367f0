"""Compute the run's metrics from all ranks' numbers in one process, rightly and under each misconception."""

import math
import random

from ranks import measured

from frog.learn.grader.grade import Grade

NAMES = ("loss", "perplexity", "tokens", "slowest_step_s")


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    shapes = [(draw.randint(300, 900), [5, 2]), (draw.randint(300, 900), [3, 3]), (60_000_001, [3, 2])]
    cases = [drawn_case(grade.seed + n, full, batches) for n, (full, batches) in enumerate(shapes)]
    run = run_cases(grade, 2, [*cases, {"kind": "predicted"}])
    run_cases(grade, 3, [drawn_case(grade.seed + 9, 500, [2, 0, 4])])
    ways = ways_of([measured(cases[0], rank) for rank in range(2)])
    grade.measured("loss of a run, yours", f"{run[0][0]['loss']:.4f}")
    for name in ("batches-weigh-alike", "ranks-weigh-alike"):
        grade.measured(f"the same if {name.replace('-', ' ')}", f"{ways[name]['loss']:.4f}")
    grade.measured("its perplexity, yours", f"{run[0][0]['perplexity']:.3f}")
    grade.measured("mean of the ranks' perplexities", f"{ways['mean-of-exponentials']['perplexity']:.3f}")
    grade.predicted("perplexity", float(run[0][-1]["perplexity"]))


def drawn_case(seed, full, batches):
    return {"kind": "drawn", "seed": seed, "full": full, "batches": batches}


def run_cases(grade, size, cases):
    world = grade.world(size, {"cases": cases})
    late = sum(call.is_async and not call.waited for call in world.calls[0])
    if late:
        grade.reject("not-waited", f"Rank 0 started {late} operations and never waited for them.")
    for n, case in enumerate(cases):
        judge(grade, [measured(case, rank) for rank in range(size)], [rank[n] for rank in world.values])
    return world.values


def mean(values, weights):
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def ways_of(ranks):
    """Return the right figures, and those of each misconception."""
    losses = [loss for rank in ranks for loss in rank["losses"]]
    tokens = [num for rank in ranks for num in rank["tokens"]]
    busy = [rank for rank in ranks if rank["losses"]]
    own = [mean(rank["losses"], rank["tokens"]) for rank in busy]
    alike = [sum(rank["losses"]) / len(rank["losses"]) for rank in busy]
    shares = [sum(rank["tokens"]) for rank in busy]
    slowest = [max(rank["step_s"]) for rank in busy]
    steps = [second for rank in ranks for second in rank["step_s"]]
    loss = mean(losses, tokens)
    num = len(busy)
    return {
        "right": {"loss": loss, "perplexity": math.exp(loss), "tokens": sum(tokens), "slowest_step_s": max(slowest)},
        "batches-weigh-alike": {"loss": sum(losses) / len(losses)},
        "batches-weigh-alike.2": {"loss": sum(alike) / num},
        "batches-weigh-alike.3": {"loss": mean(alike, shares)},
        "ranks-weigh-alike": {"loss": sum(own) / num},
        "ranks-weigh-alike.2": {"loss": sum(own) / len(ranks)},
        "mean-of-exponentials": {"perplexity": sum(map(math.exp, own)) / num},
        "mean-of-exponentials.2": {"perplexity": mean(map(math.exp, own), shares)},
        "mean-of-exponentials.3": {"perplexity": mean(map(math.exp, losses), tokens)},
        "mean-of-exponentials.4": {"perplexity": sum(map(math.exp, losses)) / len(losses)},
        "mean-hides-the-slowest": {"slowest_step_s": sum(slowest) / num},
        "mean-hides-the-slowest.2": {"slowest_step_s": sum(steps) / len(steps)},
        "steps-added-up": {"slowest_step_s": max(sum(rank["step_s"]) for rank in ranks)},
        "steps-added-up.2": {"slowest_step_s": sum(steps)},
        "steps-added-up.3": {"slowest_step_s": sum(slowest)},
        "another-base": {"perplexity": 2**loss},
        "exponential-of-a-sum": {"perplexity": math.exp(sum(losses))},
        "exponential-of-a-sum.2": {"perplexity": math.inf},
        "mean-hides-the-slowest.3": {"slowest_step_s": sum(slowest) / len(ranks)},
    }


def close(a, b, rtol=1e-5):
    return math.isclose(a, b, rel_tol=rtol)


def own_figures(rank):
    if not rank["losses"]:
        return dict.fromkeys(NAMES, 0.0)
    loss = mean(rank["losses"], rank["tokens"])
    figures = (loss, math.exp(loss), sum(rank["tokens"]), max(rank["step_s"]))
    return dict(zip(NAMES, figures, strict=True))


def judge(grade, ranks, found):
    ways = ways_of(ranks)
    right = ways["right"]
    setting = f"{len(ranks)} ranks with {' and '.join(str(sum(rank['tokens'])) for rank in ranks)} tokens"
    figures = [as_numbers(grade, setting, n, value) for n, value in enumerate(found)]
    good = [all(close(value[name], right[name]) for name in NAMES) for value in figures]
    elsewhere = [rank for rank, value in enumerate(figures) if not close(value["loss"], right["loss"])]
    if good[0] and elsewhere:
        other = elsewhere[0]
        says = f"{setting}: rank 0 has loss {figures[0]['loss']:.4f}, rank {other} has {figures[other]['loss']:.4f}"
        grade.reject("only-rank-0-knows", f"{says}, tokens {figures[other]['tokens']:,.0f}; rank 0 is right.")
    own = [own_figures(rank) for rank in ranks]
    if all(close(v[name], o[name]) for o, v in zip(own, figures, strict=True) for name in ("loss", "tokens")):
        seen = " and ".join(f"{value['loss']:.4f}" for value in figures)
        grade.reject(
            "own-figures",
            f"{setting}: the ranks return {seen}, each its own loss; the run's loss is {right['loss']:.4f}.",
        )
    is_own = {name: all(close(v[name], o[name]) for v, o in zip(figures, own, strict=True)) for name in NAMES}
    for rank, value in enumerate(figures):
        for name in NAMES:
            if not close(value[name], right[name]) and is_own[name]:
                says = f"{setting}: on rank {rank} {name} is {value[name]:.6g}, its own value; the run's is"
                grade.reject("own-figures", f"{says} {right[name]:.6g}.")
            if not close(value[name], right[name]):
                explain(grade, f"{setting}: on rank {rank} {name} is {value[name]:.6g}", name, value[name], ways)
    check_count(grade, setting, figures, right)


def as_numbers(grade, setting, rank, value):
    if isinstance(value, str):
        grade.reject("exponential-of-a-sum", f"{setting}: on rank {rank} a number became too large: {value}.")
    if not isinstance(value, dict) or set(value) != set(NAMES):
        grade.reject("unknown", f"{setting}: rank {rank} returned {value!r}, expected a dict of {', '.join(NAMES)}.")
    try:
        return {name: float(number) for name, number in value.items()}
    except (TypeError, ValueError):
        return grade.reject("unknown", f"{setting}: rank {rank} returned {value!r}, expected numbers.")


def explain(grade, seen, name, number, ways):
    for id, figures in ways.items():
        if name in figures and close(number, figures[name]):
            grade.reject(id.split(".")[0], f"{seen}, expected {figures_of(ways, name)}.")
    grade.reject("unknown", f"{seen}, expected {figures_of(ways, name)}.")


def figures_of(ways, name):
    return f"{ways['right'][name]:.6g}"


def check_count(grade, setting, figures, right):
    """Check that token counts are exact; float32 has too few digits."""
    for rank, value in enumerate(figures):
        if (off := value["tokens"] - right["tokens"]) != 0:
            grade.reject(
                "counts-in-float32",
                f"{setting}: rank {rank} counts {value['tokens']:,.0f} tokens, which is off by {off:+,.0f}.",
            )
