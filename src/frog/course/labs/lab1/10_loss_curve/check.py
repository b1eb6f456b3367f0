"""Merged logs and running means against their definitions, and against what others take them to be."""

import math

from ranks import make_logs, make_losses

from frog.grader.grade import Grade


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    for name, rows in make_logs(grade.seed).items():
        check_merged(grade, name, value["merged"][name], rows)
    losses, beta = make_losses(grade.seed)
    moved = [
        place
        for place, pair in enumerate(zip(value["smoothed"][1], value["other end"], strict=False), start=1)
        if pair[0] != pair[1]
    ]
    if moved and moved[0] < len(losses[1]):
        text = f"Loss {len(losses[1])} of {len(losses[1])} was made larger by 5; value {moved[0]} changed with it."
        grade.reject("looks-ahead", text)
    for found, some in zip(value["smoothed"], losses, strict=True):
        check_smoothed(grade, found, some, beta)
    falling = losses[1]
    text = f"first value {value['smoothed'][1][0]:.3f}, not corrected {(1 - beta) * falling[0]:.3f}"
    grade.measured(f"losses that fall from {falling[0]:.3f}, beta {beta:.3f}", text)
    grade.predicted("first-smoothed", 0.1 * 7.6)


def check_merged(grade: Grade, name: str, found: list[list[float]], rows: list[tuple[int, float]]) -> None:
    expected = [list(row) for row in true_rows(rows)]
    if found == expected:
        return
    steps, logged = [row[0] for row in found], [step for step, _ in rows]
    back = next((place for place in range(1, len(rows)) if logged[place] <= logged[place - 1]), len(rows) - 1)
    what = f"A log {name}."
    if back and logged[back] <= logged[back - 1]:
        what = f"A log {name}: the steps {logged[0]} to {logged[back - 1]}, then from {logged[back]} on again."
    if len(steps) != len(set(steps)):
        twice = next(step for step in steps if steps.count(step) > 1)
        grade.reject("both-rows-count", f"{what} Your curve has step {twice} {steps.count(twice)} times.")
    wrong = [row for row in found if row not in expected]
    if len(found) > len(expected) and [row for row in found if row in expected] == expected:
        text = f"{what} The run now ends at step {expected[-1][0]}; your curve goes to {steps[-1]}."
        grade.reject("dead-past-kept", text)
    if wrong and wrong[0][0] in [row[0] for row in expected]:
        right = next(row[1] for row in expected if row[0] == wrong[0][0])
        text = f"{what} Step {wrong[0][0]} had the loss {right} in the end, your curve has {wrong[0][1]}."
        grade.reject("first-row-wins", text)
    grade.reject("unknown", f"{what} Your curve has the steps {steps}, expected {[row[0] for row in expected]}.")


def true_rows(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those after which no row came with the same step or an earlier one."""
    return [row for place, row in enumerate(rows) if all(later[0] > row[0] for later in rows[place + 1 :])]


def check_smoothed(grade: Grade, found: list[float], losses: list[float], beta: float) -> None:
    if len(found) != len(losses):
        grade.reject("unknown", f"{len(losses)} losses went in, {len(found)} values came out.")
    expected = mean(losses, beta)
    if close(found, expected):
        return
    places = range(len(found))
    place = next(place for place in places if not close(found[place : place + 1], expected[place : place + 1]))
    text = f"Beta {beta:.3f}: value {place + 1} is {found[place]:.4f}, and should be {expected[place]:.4f}."
    bad = next((number for number, loss in enumerate(losses) if not math.isfinite(loss)), None)
    seen = f"The first loss was {losses[0]:.4f}."
    if bad is not None and place >= bad:
        seen = f"Loss {bad + 1} of {len(losses)} was {losses[bad]}."
    for belief, variant in beliefs(losses, beta).items():
        if close(found, variant):
            grade.reject(belief.split(".")[0], f"{text} {seen}")
    if bad is not None and place >= bad and not math.isfinite(found[place]):
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
    """What others make of these losses."""
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
    """A loss that is not finite adds nothing to the sum, and to the weight as others do."""
    total, values = 0.0, []
    for place, loss in enumerate(losses, start=1):
        if math.isfinite(loss):
            total = beta * total + (1 - beta) * loss
        elif fades:
            total *= beta
        values.append(total / (1 - beta**place))
    return values


def filled(losses: list[float]) -> list[float]:
    """Each loss that is not finite is taken to be the one before."""
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
    return f"The last four losses up to there were {last}" if len(losses) > 4 else f"The losses up to there were {last}"
