"""`frog learn progress`: passed exercises and the accuracy of predictions, as text and as an HTML page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.files import write_atomic
from frog.core.units import time_text
from frog.learn.grader.exercise import Exercise
from frog.learn.predictions import compared
from frog.learn.progress import Guess, Work
from frog.learn.quantity import relative_error
from frog.learn.standing import Standing, title_of
from frog.learn.text import Style

_MOST_TIMES = 16
"""The chart clips guesses that are off by more than this factor to its edge."""

WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 880, 300, 130, 20, 16, 40


def progress_lines(standing: Standing, style: Style) -> list[str]:
    """Return the passed exercises by lab, then predictions, misconceptions, quizzes and drills."""
    lines = [
        f"lab {lab}  {style.bar(standing.passed(exercises), len(exercises))}{_help(standing, exercises)}"
        for lab, exercises in standing.labs()
    ]
    if predictions := _prediction_rows(standing):
        lines += ["", style.paint("predictions", "strong")]
        lines += [
            line for row in predictions for line in style.wrap(row["said"], first=f"{row['number']}  {row['id']}: ")
        ]
    if beliefs := _belief_rows(standing):
        lines += ["", style.paint("misconceptions that checks found", "strong")]
        lines += [
            line for row in beliefs for line in style.wrap(row["belief"], first=f"{row['number']}  {row['times']} x ")
        ]
    if standing.progress.quizzes:
        lines += ["", style.paint("quizzes", "strong")]
        lines += [f"  {row['at'][:16]}  {row['lab']}: {row['right']} of {row['asked']}" for row in _quiz_rows(standing)]
    if standing.progress.drills:
        lines += ["", style.paint("drills", "strong")]
        lines += [f"  {drill.at[:16]}  {drill.right} of 3: {drill.fault}" for drill in standing.progress.drills]
    return [*lines, ""]


def _help(standing: Standing, exercises: list[Exercise]) -> str:
    works = [standing.work(exercise) for exercise in exercises]
    hints, solutions = sum(work.hints for work in works), sum(work.gave_up is not None for work in works)
    return f"   hints {hints}, solutions {solutions}" if hints or solutions else ""


def _tolerance(standing: Standing, guess: Guess) -> float:
    exercise = next((e for e in standing.exercises if e.id == guess.exercise), None)
    asked = next((p for p in exercise.manifest.predict if p.id == guess.id), None) if exercise else None
    return asked.tolerance if asked else 0.0


def _number(standing: Standing, exercise: str) -> str:
    return next((e.number for e in standing.exercises if e.id == exercise), exercise)


def _prediction_rows(standing: Standing) -> list[dict[str, Any]]:
    """Return the predictions in chronological order, with their measurements."""
    return [
        {
            "number": _number(standing, guess.exercise),
            "id": guess.id,
            "at": guess.at,
            "said": f"predicted {guess.text}, not measured yet"
            if guess.measured is None
            else compared(guess, guess.measured, _tolerance(standing, guess)),
        }
        for guess in standing.progress.predictions
    ]


def _belief_rows(standing: Standing) -> list[dict[str, Any]]:
    """Return the misconceptions that checks found, by exercise; omit general ones, which have no belief."""
    rows = []
    for exercise in standing.exercises:
        for name, rejected in standing.work(exercise).rejected.items():
            known = exercise.misconception(name)
            if known is not None:
                rows.append(
                    {"number": exercise.number, "times": rejected.times, "belief": known.belief, "last": rejected.last}
                )
    return rows


def _quiz_rows(standing: Standing) -> list[dict[str, Any]]:
    return [
        {
            "at": quiz.at,
            "lab": "all labs" if quiz.lab is None else f"lab {quiz.lab}",
            "right": quiz.right,
            "asked": quiz.asked,
        }
        for quiz in standing.progress.quizzes
    ]


def _exercise_row(exercise: Exercise, work: Work) -> dict[str, Any]:
    return {
        "number": exercise.number,
        "title": title_of(exercise),
        "passed": work.passed.at[:16] if work.passed else None,
        "by": work.passed.by if work.passed else "",
        "checks": work.checks,
        "hints": work.hints,
        "gave_up": work.gave_up is not None,
    }


@dataclass(frozen=True)
class Point:
    """A prediction in the chart."""

    x: float
    y: float
    near: bool
    again: bool
    """True if the number had been measured before this prediction."""
    label: str


def chart_points(standing: Standing) -> list[Point]:
    """Return the measured predictions in chronological order, placed by the ratio of guess to measurement."""
    measured = [guess for guess in standing.progress.predictions if guess.measured is not None]
    seen: set[tuple[str, str]] = set()
    points = []
    for place, guess in enumerate(measured):
        assert guess.measured is not None
        error, tolerance = relative_error(guess.value, guess.measured), _tolerance(standing, guess)
        again = (guess.exercise, guess.id) in seen
        seen.add((guess.exercise, guess.id))
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * (place + 0.5) / len(measured)
        near = error is not None and error <= tolerance
        label = f"{_number(standing, guess.exercise)} {guess.id}"
        points.append(Point(round(x, 1), height_of(_times(guess)), near, again, f"{label}: {_words(standing, guess)}"))
    return points


def _words(standing: Standing, guess: Guess) -> str:
    return compared(guess, guess.measured or 0.0, _tolerance(standing, guess))


def _times(guess: Guess) -> float:
    """Return the ratio of guess to measurement; the chart's edge if that ratio is undefined."""
    measured = guess.measured or 0.0
    if guess.value == measured:
        return 1.0
    if guess.value * measured <= 0:
        return _MOST_TIMES if guess.value > measured else 1 / _MOST_TIMES
    return guess.value / measured


def height_of(times: float) -> float:
    """Return a ratio's y coordinate on a logarithmic scale with 1 in the middle."""
    most = math.log2(_MOST_TIMES)
    part = max(-most, min(most, math.log2(times))) / most
    return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - part) / 2, 1)


def _grid() -> list[dict[str, Any]]:
    powers = (power for power in range(-4, 5) if power % 2 == 0 or abs(power) == 1)
    return [{"y": height_of(2.0**power), "label": _label_of(power)} for power in powers]


def _label_of(power: int) -> str:
    """Return the label of a guess that is 2**power times the measured value."""
    if power == 0:
        return "right"
    return f"{2 ** abs(power)} times too {'much' if power > 0 else 'little'}"


def write_page(standing: Standing, path: Path) -> Path:
    """Write the page as one self-contained file."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("frog.learn", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template("progress.html.jinja").render(
        learner=standing.progress.name,
        now=time_text()[:16],
        began=standing.progress.began[:10],
        passed=standing.passed(),
        of=len(standing.exercises),
        labs=[(lab, [_exercise_row(e, standing.work(e)) for e in exercises]) for lab, exercises in standing.labs()],
        predictions=_prediction_rows(standing),
        points=chart_points(standing),
        grid=_grid(),
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        beliefs=_belief_rows(standing),
        quizzes=_quiz_rows(standing),
        drills=standing.progress.drills,
    )
    write_atomic(path, html + "\n")
    return path
