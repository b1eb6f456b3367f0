"""Compare merged logs and running means with their definitions, and with those of each misconception."""

import math
from typing import NoReturn

from ranks import make_logs, make_losses

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}, seconds=8).values[0]  # importing matplotlib takes some of them
    for name, rows in make_logs(grade.seed).items():
        check_merged(grade, name, value["merged"][name], rows)
    losses, beta = make_losses(grade.seed)
    moved = [
        place
        for place, pair in enumerate(zip(value["smoothed"][1], value["other end"], strict=False), start=1)
        if pair[0] != pair[1]
    ]
    if moved and moved[0] < len(losses[1]):
        text = f"The check increased loss {len(losses[1])} of {len(losses[1])} by 5; your value {moved[0]} changed too."
        grade.reject("looks-ahead", text)
    for found, some in zip(value["smoothed"], losses, strict=True):
        check_smoothed(grade, found, some, beta)
    falling = losses[1]
    text = f"first value {value['smoothed'][1][0]:.3f}; without the correction {(1 - beta) * falling[0]:.3f}"
    grade.measured(f"losses that fall from {falling[0]:.3f}, beta {beta:.3f}", text)
    grade.predicted("first-smoothed", 0.1 * 7.6)


def check_merged(grade: Grade, name: str, found: list[list[float]], rows: list[tuple[int, float]]) -> None:
    expected = [list(row) for row in true_rows(rows)]
    if found != expected:
        explain_merged(grade, name, found, expected, rows)


def explain_merged(
    grade: Grade, name: str, found: list[list[float]], expected: list[list[float]], rows: list[tuple[int, float]]
) -> NoReturn:
    steps, logged = [row[0] for row in found], [step for step, _ in rows]
    back = next((place for place in range(1, len(rows)) if logged[place] <= logged[place - 1]), len(rows) - 1)
    what = f"A log {name}."
    if back and logged[back] <= logged[back - 1]:
        what = f"A log {name}: the steps {logged[0]} to {logged[back - 1]}, then from {logged[back]} on again."
    for which, place in (("first", 0), ("last", -1)):
        if found == [list(row) for row in one_restart(rows, place)] != [list(row) for row in rows]:
            text = f"{what} Your curve is right for the {which} restart of {count(len(restarts(rows)), 'restart')}."
            grade.reject("one-restart-only", text)
    if len(steps) != len(set(steps)):
        twice = next(step for step in steps if steps.count(step) > 1)
        grade.reject("both-rows-count", f"{what} Your curve contains step {twice} {count(steps.count(twice), 'time')}.")
    wrong = [row for row in found if row not in expected]
    if len(found) > len(expected) and [row for row in found if row in expected] == expected:
        text = f"{what} The run now ends at step {expected[-1][0]}; your curve goes to {steps[-1]}."
        grade.reject("dead-past-kept", text)
    if wrong and wrong[0][0] in [row[0] for row in expected]:
        right = next(row[1] for row in expected if row[0] == wrong[0][0])
        text = f"{what} When the run last took step {wrong[0][0]} the loss was {right}; your curve has {wrong[0][1]}."
        grade.reject("first-row-wins", text)
    grade.reject("unknown", f"{what} Your curve has the steps {steps}, expected {[row[0] for row in expected]}.")


def restarts(rows: list[tuple[int, float]]) -> list[int]:
    """Return the indices of rows at which the run restarts: those whose step is not larger than the previous one."""
    return [place for place in range(1, len(rows)) if rows[place][0] <= rows[place - 1][0]]


def one_restart(rows: list[tuple[int, float]], which: int) -> list[tuple[int, float]]:
    """Return the rows without those that one restart alone, the first or the last, invalidates."""
    found = restarts(rows)
    if len(found) < 2:
        return rows
    cut = found[which]
    return [row for row in rows[:cut] if row[0] < rows[cut][0]] + rows[cut:]


def true_rows(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the rows that no later row with the same or an earlier step replaces."""
    return [row for place, row in enumerate(rows) if all(later[0] > row[0] for later in rows[place + 1 :])]


def check_smoothed(grade: Grade, found: list[float], losses: list[float], beta: float) -> None:
    if len(found) != len(losses):
        grade.reject(
            "unknown", f"You got {count(len(losses), 'loss', 'losses')} and returned {count(len(found), 'value')}."
        )
    expected = mean(losses, beta)
    if not close(found, expected):
        explain_smoothed(grade, found, expected, losses, beta)


def explain_smoothed(
    grade: Grade, found: list[float], expected: list[float], losses: list[float], beta: float
) -> NoReturn:
    places = range(len(found))
    place = next(place for place in places if not close(found[place : place + 1], expected[place : place + 1]))
    yours, right = distinct_texts(found[place], expected[place])
    text = f"Beta {beta:.3f}: value {place + 1} is {yours}, but should be {right}."
    holes = [number for number, loss in enumerate(losses[: place + 1]) if not math.isfinite(loss)]
    bad = holes[-1] if holes else None
    seen = f"The first loss was {losses[0]:.4f}."
    if bad is not None:
        seen = f"Loss {bad + 1} of {len(losses)} was {losses[bad]}."
    for belief, variant in beliefs(losses, beta).items():
        if close(found, variant):
            grade.reject(belief.split(".")[0], f"{text} {seen}")
    if bad is not None and not math.isfinite(found[place]) and math.isfinite(expected[place]):
        grade.reject("nan-spreads", f"{text} {seen}")
    grade.reject("unknown", f"{text} {show(losses[: place + 1])}.")


def mean(losses: list[float], beta: float) -> list[float]:
    values = []
    for place in range(1, len(losses) + 1):
        real = [loss for loss in losses[:place] if math.isfinite(loss)]
        weights = [beta**age for age in reversed(range(len(real)))]
        total = sum(weight * loss for weight, loss in zip(weights, real, strict=True))
        values.append(total / sum(weights) if real else math.nan)
    return values


def beliefs(losses: list[float], beta: float) -> dict[str, list[float]]:
    """Smooth these losses under each misconception."""
    real = [loss if math.isfinite(loss) else None for loss in losses]
    return {
        "begins-at-zero": running(real, beta, 0.0),
        "begins-at-the-first": running(real, beta, None),
        "weights-turned": mean(losses, 1 - beta),
        "nan-counted": counted(losses, beta, fades=True),
        "nan-counted.2": counted(losses, beta, fades=False),
        "nan-counted.3": mean(filled(losses), beta),
    }


def counted(losses: list[float], beta: float, fades: bool) -> list[float]:
    """Smooth, with losses that are not finite counted in the weight but not in the sum."""
    total, values = 0.0, []
    for place, loss in enumerate(losses, start=1):
        if math.isfinite(loss):
            total = beta * total + (1 - beta) * loss
        elif fades:
            total *= beta
        values.append(total / (1 - beta**place))
    return values


def filled(losses: list[float]) -> list[float]:
    """Replace each loss that is not finite by the previous one."""
    values: list[float] = []
    for loss in losses:
        values.append(loss if math.isfinite(loss) or not values else values[-1])
    return values


def running(losses: list[float | None], beta: float, value: float | None) -> list[float]:
    values = []
    for loss in losses:
        if loss is not None:
            value = loss if value is None else beta * value + (1 - beta) * loss
        values.append(math.nan if value is None else value)
    return values


def close(found: list[float], expected: list[float]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all((math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-6 * max(1.0, abs(b)) for a, b in pairs)


def show(losses: list[float]) -> str:
    last = ", ".join(f"{loss:.3f}" for loss in losses[-4:])
    return f"The last four losses so far were {last}" if len(losses) > 4 else f"The losses so far were {last}"
